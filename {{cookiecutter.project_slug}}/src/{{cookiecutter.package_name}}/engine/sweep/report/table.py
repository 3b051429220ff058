"""The tables in the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...run.record import shown as shown_path
from .contents import Contents
from .groups import Configuration, counted
from .jobs import Job
from .overrides import label, short_keys, shorter, shown
from .strategies import FIRST_STEPS, Comparison

MOST_ROWS = 50
MOST_FAILURES = 10
MOST_LETTERS = 16
"""Of an override's value; the files have all of it."""

# What the columns that every table has take of a line.
FIXED = 53
METRIC = 10

FACTS = {
    "global_step": ("steps", ",.0f"),
    "seconds": ("seconds", ".1f"),
    "samples_per_second": ("samples/s", ",.0f"),
}

STYLES = {"finished": "green", "failed": "red", "diverged": "red", "not run": "dim"}


def show(
    contents: Contents,
    seeds: Sequence[Configuration],
    strategies: Sequence[Comparison],
) -> None:
    """Print the jobs, then what failed, the means over seeds and the strategies."""
    console = Console()
    console.print(_jobs(contents, console.width))
    if len(contents.jobs) > MOST_ROWS:
        console.print(f"and {len(contents.jobs) - MOST_ROWS} more in sweep.csv")
    _show_failures(console, contents.in_order())
    if seeds:
        console.print(_seeds(contents, seeds))
    if strategies:
        console.print(_strategies(strategies))


def _jobs(contents: Contents, width: int) -> Table:
    table = _table(f"Sweep, {contents.counts}")
    rows = contents.jobs[:MOST_ROWS]
    keys = short_keys(contents.keys)
    widths = [
        max(len(short), *(min(len(_value(job, key)), MOST_LETTERS) for job in rows)) + 2
        for key, short in keys.items()
    ]
    spare = width - FIXED - METRIC * max(1, len(contents.objectives))
    # Many overrides share one column, in which they wrap.
    together = sum(widths) > max(spare, 12)
    names = contents.metrics
    most = max(len(contents.objectives), 1 + (spare - sum(widths)) // METRIC)
    table.add_column("job", justify="right", overflow="fold")
    if together:
        table.add_column("overrides", overflow="fold", ratio=1)
    else:
        for short in keys.values():
            table.add_column(Text(short), overflow="fold")
    table.add_column("status", no_wrap=True)
    # A fact that is an objective has its column among the metrics.
    facts = {name: fact for name, fact in FACTS.items() if name not in names[:most]}
    for head, _ in facts.values():
        table.add_column(head, justify="right", no_wrap=True)
    for name in names[:most]:
        table.add_column(Text(name), justify="right")
    for job in rows:
        values = [_value(job, key) for key in keys]
        cells = [label(job.overrides, contents.keys, MOST_LETTERS)] if together else values
        table.add_row(
            Text(f"★ {job.name}" if job.name in contents.best else job.name),
            *(Text(cell) for cell in cells),
            Text(job.status, style=STYLES.get(job.status, "yellow")),
            *(Text(_number(job.fact(name), form)) for name, (_, form) in facts.items()),
            *(Text(_metric(contents, job, name)) for name in names[:most]),
            style="bold" if job.name in contents.best else "",
        )
    return table


def _value(job: Job, key: str) -> str:
    return shorter(shown(job.overrides.get(key, "")), MOST_LETTERS)


def _metric(contents: Contents, job: Job, name: str) -> str:
    for objective, value in zip(contents.objectives, job.values, strict=True):
        if objective.name == name and value is not None:
            return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return _number(job.numbers.get(name), ".4f")


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _show_failures(console: Console, jobs: Sequence[Job]) -> None:
    bad = [job for job in jobs if job.status in ("failed", "diverged")]
    for job in bad[:MOST_FAILURES]:
        line = f"{job.name} {job.status}: {job.error or 'no reason was written down'}"
        if job.traceback:
            line += f" (traceback: {shown_path(job.traceback)})"
        console.print(Text(line, style="red"), soft_wrap=True)
    if len(bad) > MOST_FAILURES:
        console.print(f"and {len(bad) - MOST_FAILURES} more that failed or diverged, in sweep.csv")


def _seeds(contents: Contents, seeds: Sequence[Configuration]) -> Table:
    table = _table("Mean ± standard deviation over seeds")
    table.add_column("configuration", overflow="fold")
    table.add_column("n", justify="right")
    own = [each.name for each in contents.objectives]
    others = [name for name in contents.metrics if name not in own][: max(0, 2 - len(own))]
    for name in [*own, *others]:
        table.add_column(Text(name), justify="right")
    for each in seeds[:MOST_ROWS]:
        spreads = [each.objective(index) for index in range(len(own))]
        spreads += [each.metric(name) for name in others]
        table.add_row(
            Text(each.label), counted(each), *("–" if one is None else str(one) for one in spreads)
        )
    return table


def _strategies(strategies: Sequence[Comparison]) -> Table:
    reference = strategies[0].reference
    table = _table(f"Strategies, compared with {reference}")
    table.add_column("strategy", overflow="fold")
    for name in (
        f"loss difference, {FIRST_STEPS} steps",
        "ms per step",
        f"× {reference}",
        "peak memory, MiB",
    ):
        table.add_column(Text(name), justify="right")
    for each in strategies:
        milliseconds = each.seconds_per_step and 1000 * each.seconds_per_step
        table.add_row(
            Text(each.strategy),
            _number(each.difference, ".1e"),
            _number(milliseconds, ",.1f"),
            _number(each.ratio, ".2f"),
            _number(each.memory, ",.0f"),
        )
    return table


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)


def show_files(paths: Sequence[Path]) -> None:
    """Say where the report is."""
    console = Console()
    line = "Report: " + ", ".join(shown_path(path) for path in paths)
    console.print(Text(line), soft_wrap=True)
