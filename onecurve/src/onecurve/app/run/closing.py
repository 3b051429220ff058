"""The table with which a run ends: its final metrics, and where they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...errors import plain_console
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
    table = _table("Training finished")
    _add_metrics(table, metrics)
    table.add_section()
    table.add_row("steps", str(facts["global_step"]))
    table.add_row("time", f"{facts['seconds']:.1f} s")
    table.add_row("samples per second", f"{facts['samples_per_second']:,.0f}")
    for name in (name for name in facts if name not in SHOWN):
        table.add_row(*_fact(name, facts[name]))
    count = facts["world_size"]
    processes = "1 process" if count == 1 else f"{count} processes"
    table.add_row("strategy", f"{facts['strategy']} on {processes}")
    console = plain_console()
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True, highlight=False)
    _print_path(console, "Run directory", run_dir, run_dir)
    if best:
        called = invocation_of(run_dir)
        command = called.command("evaluate.py", override("checkpoint", called.short(best)))
        console.print("Evaluate the best checkpoint:")
        console.print(f"  {command}", soft_wrap=True, highlight=False)


def show_metrics(metrics: dict[str, float], run_dir: Path) -> None:
    """Print the metrics of an evaluation."""
    table = _table("Evaluation finished")
    _add_metrics(table, metrics)
    console = plain_console()
    console.print(table)
    _print_path(console, "Written to", run_dir / "metrics.json", run_dir)


def _table(title: str) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    return table


def _add_metrics(table: Table, metrics: dict[str, float]) -> None:
    for name in sorted(metrics):
        table.add_row(name, f"{metrics[name]:.4f}")


def _fact(name: str, value: float) -> tuple[str, str]:
    """A name in words and a number with its unit: `peak_memory_mib` is a peak memory in MiB."""
    number = f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"
    unit = " MiB" if name.endswith("_mib") else ""
    return name.removesuffix("_mib").replace("_", " "), f"{number}{unit}"


def _print_path(console: Console, what: str, path: Path, run_dir: Path) -> None:
    console.print(f"{what}: {invocation_of(run_dir).short(path)}", soft_wrap=True, highlight=False)
