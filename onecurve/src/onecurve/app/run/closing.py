"""The table with which a run ends: its final metrics, and where they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ...errors import in_digits, plain_console
from .record import invocation_of, override

# Facts with rows of their own.
SHOWN = {"strategy", "world_size", "global_step", "seconds", "samples_per_second"}


def show_training(
    metrics: dict[str, float],
    facts: dict[str, Any],
    run_dir: Path,
    best: str | None,
    notes: Sequence[str] = (),
) -> None:
    """Print the results of a training run, where they are, and notes on how it ended."""
    count = facts["world_size"]
    processes = "1 process" if count == 1 else f"{count} processes"
    rows = [
        ("steps", str(facts["global_step"])),
        ("time", f"{facts['seconds']:.1f} s"),
        ("samples per second", f"{facts['samples_per_second']:,.0f}"),
        *(_fact(name, value) for name, value in facts.items() if name not in SHOWN),
        ("strategy", f"{facts['strategy']} on {processes}"),
    ]
    called = invocation_of(run_dir)
    lines = [*notes, f"Run directory: {called.short(run_dir)}"]
    if best:
        command = called.command("evaluate.py", override("checkpoint", called.short(best)))
        lines += ["Evaluate the best checkpoint:", f"  {command}"]
    _show("Training finished", metrics, rows, lines)


def show_metrics(metrics: dict[str, float], run_dir: Path) -> None:
    """Print the metrics of an evaluation."""
    path = invocation_of(run_dir).short(run_dir / "metrics.json")
    _show("Evaluation finished", metrics, [], [f"Written to: {path}"])


def _show(
    title: str, metrics: dict[str, float], rows: list[tuple[str, str]], lines: list[str]
) -> None:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name in sorted(metrics):
        table.add_row(name, in_digits(metrics[name]))
    table.add_section()
    for row in rows:
        table.add_row(*row)
    console = plain_console()
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _fact(name: str, value: float) -> tuple[str, str]:
    """A name in words and a number with its unit: `peak_memory_mib` is a peak memory in MiB."""
    number = f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"
    unit = " MiB" if name.endswith("_mib") else ""
    return name.removesuffix("_mib").replace("_", " "), f"{number}{unit}"
