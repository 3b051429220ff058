"""Tables of texts, which the terminal and the page show alike; and that of the jobs."""

from dataclasses import dataclass

from .job_results import Job
from .overrides import label, short_keys, shown
from .sweep_results import SweepResults

STAR = "★ "
"""What the name of a best job begins with."""
MOST_LETTERS = 16
"""Of an override's value, where all overrides share a column."""
FACTS = {
    "global_step": ("steps", ",.0f"),
    "seconds": ("seconds", ".1f"),
    "samples_per_second": ("samples/s", ",.0f"),
    "peak_memory_mib": ("peak MiB", ",.0f"),
}
"""Head and form of a job's numbers that are no metrics."""


@dataclass(frozen=True)
class Table:
    """Rows of texts below their heads."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    names: int = 1
    """How many of the columns, the first, are names; the others are numbers."""
    least: int = 0
    """How many of the columns are shown even where there is no room for them."""
    note: str = ""


def number_text(value: float | None, form: str) -> str:
    """A number as it is written in a cell; a dash for none."""
    return "–" if value is None else format(value, form)


def job_table(sweep: SweepResults, together: bool = False) -> Table:
    """All jobs, best first.

    Args:
        sweep: The jobs.
        together: Whether all overrides share a column, for a narrow place.
    """
    keys = ["overrides"] if together else list(short_keys(sweep.keys).values())
    *facts, memory = (name for name in FACTS if name not in sweep.metrics)
    numbers = [*facts, *sweep.metrics, memory]
    rows, stops = [], any(job.stopped for job in sweep.jobs)
    for job in sweep.ranked:
        values = [shown(job.overrides.get(key, "")) for key in sweep.keys]
        if together:
            values = [label(job.overrides, sweep.keys, MOST_LETTERS)]
        name = STAR + job.name if job in sweep.best else job.name
        ended = [job.status, _by_what(job)] if stops else [job.status]
        rows.append([name, *values, *ended, *(_cell(job, number) for number in numbers)])
    heads = [FACTS[number][0] if number in FACTS else number for number in numbers]
    ends = ["status", "stopped by"] if stops else ["status"]
    names = 1 + len(keys) + len(ends)
    return Table(
        title=f"Sweep, {sweep.counts}",
        heads=["job", *keys, *ends, *heads],
        rows=rows,
        names=names,
        least=names + len(facts) + len(sweep.objectives),
    )


def _by_what(job: Job) -> str:
    """What ended a job before its last epoch: "early_stopping", "max_time", "SIGTERM"."""
    first = job.stopped.removeprefix("stopped by ").partition(" ")[0]
    return first.rstrip(":").rpartition(".")[2]


def _cell(job: Job, name: str) -> str:
    value = job.number(name)
    if name in FACTS:
        return number_text(value, FACTS[name][1])
    if value is None:
        # That of a job which diverged says so.
        return number_text(job.numbers.get(name), ".4f")
    if 0 < abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"
