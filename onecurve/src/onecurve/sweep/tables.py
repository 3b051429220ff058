"""The tables of a report: all jobs, means over seeds, and strategies compared with `single`."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .results import COMPARED_STEPS, LOSS, Job, SweepResults, label, short_keys, shown

STAR = "★ "
"""What the name of a best job begins with."""
MOST_LETTERS = 16
"""Of an override's value, where all overrides share a column."""
# Head and format of numbers of a job that are no metrics.
FACTS = {
    "global_step": ("steps", ",.0f"),
    "seconds": ("seconds", ".1f"),
    "samples_per_second": ("samples/s", ",.0f"),
    "peak_memory_mib": ("peak MiB", ",.0f"),
}
REFERENCE = "single"
ROUNDING = 1e-5
"""Relative difference of losses from which on a note says how to tell rounding from an error."""
NOTE = (
    "Under AdamW in float32 rounding can grow, for example to 0.01 after 50 steps; "
    "trainer.precision=64-true tells it from an error."
)


@dataclass(frozen=True)
class Table:
    """Rows of texts below their heads."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    names: int = 1
    """How many of the first columns are names; the others are numbers."""
    least: int = 0
    """How many columns are shown even where there is no room for them."""
    note: str = ""


def job_table(sweep: SweepResults, narrow: bool = False) -> Table:
    """All jobs, best first; in a narrow place all overrides share a column."""
    keys = ["overrides"] if narrow else list(short_keys(sweep.keys).values())
    *facts, memory = (name for name in FACTS if name not in sweep.metrics)
    numbers = [*facts, *sweep.metrics, memory]
    ends = ["status", "stopped by"] if any(job.stopped for job in sweep.jobs) else ["status"]
    rows = []
    for job in sweep.ranked:
        values = [shown(job.overrides.get(key, "")) for key in sweep.keys]
        if narrow:
            values = [label(job.overrides, sweep.keys, MOST_LETTERS)]
        name = STAR + job.name if job in sweep.best else job.name
        ended = [job.status, _stopped_by(job)][: len(ends)]
        rows.append([name, *values, *ended, *(_cell(job, number) for number in numbers)])
    heads = [FACTS[number][0] if number in FACTS else number for number in numbers]
    names = 1 + len(keys) + len(ends)
    return Table(
        title=f"Sweep, {sweep.counts}",
        heads=["job", *keys, *ends, *heads],
        rows=rows,
        names=names,
        least=names + len(facts) + len(sweep.objectives),
    )


def _stopped_by(job: Job) -> str:
    """What ended a job before its last epoch: "early_stopping", "max_time", "SIGTERM"."""
    first = job.stopped.removeprefix("stopped by ").partition(" ")[0]
    return first.rstrip(":").rpartition(".")[2]


def _cell(job: Job, name: str) -> str:
    value = job.number(name)
    if name in FACTS:
        return _format(value, FACTS[name][1])
    if value is None:
        # NaN of a job that diverged is shown as such.
        return _format(job.numbers.get(name), ".4f")
    if 0 < abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def seed_means(sweep: SweepResults) -> Table | None:
    """Mean ± standard deviation of each configuration over its seeds, best mean first.

    Only jobs that finished count. None unless a configuration has several seeds.
    """
    keys = [key for key in sweep.keys if key != "seed"]
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in sweep.jobs:
        groups.setdefault(tuple(job.overrides.get(key, "") for key in keys), []).append(job)
    if "seed" not in sweep.keys or len(groups) == len(sweep.jobs):
        return None

    def mean_cost(jobs: list[Job]) -> float:
        costs = [sweep.costs(job)[0] for job in jobs if job.complete]
        return statistics.fmean(costs) if costs else math.inf

    rows = []
    for jobs in sorted(groups.values(), key=mean_cost):
        finished = [job for job in jobs if job.finished]
        count = str(len(jobs)) if finished == jobs else f"{len(finished)} of {len(jobs)}"
        means = [_mean([job.number(name) for job in finished]) for name in sweep.metrics]
        rows.append([label(jobs[0].overrides, keys) or "all jobs", count, *means])
    title, heads = "Mean ± standard deviation over seeds", ["configuration", "n", *sweep.metrics]
    return Table(title, heads, rows, least=2 + len(sweep.objectives))


def _mean(numbers: Sequence[float | None]) -> str:
    values = [value for value in numbers if value is not None]
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def compare_strategies(sweep: SweepResults) -> Table | None:
    """A row for each strategy, the reference first; None unless several were swept.

    Each job is compared with the job of the reference that is otherwise equal: the largest relative
    difference of the training loss in the first steps, the mean time of a step, alone and over that
    of the reference, and the largest peak memory.
    """
    names = list(dict.fromkeys(_strategy(job) for job in sweep.jobs))
    if "strategy" not in sweep.keys or len(names) < 2:
        return None
    reference = REFERENCE if REFERENCE in names else names[0]
    names.sort(key=lambda name: name != reference)
    # A key of a strategy, such as strategy.schedule, belongs to it.
    others = [key for key in sweep.keys if key != "strategy" and not key.startswith("strategy.")]

    def rest(job: Job) -> tuple[str, ...]:
        return tuple(job.overrides.get(key, "") for key in others)

    references = {rest(job): job for job in reversed(sweep.jobs) if _strategy(job) == reference}
    rows, needs_note = [], False
    for name in names:
        jobs = [job for job in sweep.jobs if _strategy(job) == name]
        pairs = [(job, references.get(rest(job))) for job in jobs]
        difference = _largest_difference(pairs)
        needs_note |= (difference or 0) > ROUNDING
        rows.append([name, _format(difference, ".1e"), *_costs(pairs)])
    heads = ["strategy", f"loss difference, {COMPARED_STEPS} steps", "ms per step"]
    heads += [f"× {reference}", "peak memory, MiB"]
    title = f"Strategies, compared with {reference}"
    return Table(title, heads, rows, least=len(heads), note=NOTE if needs_note else "")


def _strategy(job: Job) -> str:
    name = shown(job.overrides.get("strategy") or job.strategy)
    keys = [key for key in job.overrides if key.lstrip("+").startswith("strategy.")]
    details = [f"{key.removeprefix('strategy.')}={job.overrides[key]}" for key in keys]
    return f"{name} ({', '.join(details)})" if details else name


def _largest_difference(pairs: Sequence[tuple[Job, Job | None]]) -> float | None:
    found: list[float] = []
    for job, other in pairs:
        theirs = dict(other.curves[LOSS]) if other else {}
        shared = [(value, theirs[step]) for step, value in job.curves[LOSS] if step in theirs]
        found += [abs(a - b) / max(abs(b), 1e-12) for a, b in shared[:COMPARED_STEPS]]
    return max(filter(math.isfinite, found), default=None)


def _costs(pairs: Sequence[tuple[Job, Job | None]]) -> list[str]:
    seconds, ratios = [], []
    for job, other in pairs:
        own, theirs = _seconds_per_step(job), _seconds_per_step(other)
        seconds += [own] if own else []
        ratios += [own / theirs] if own and theirs else []
    memory = [job.number("peak_memory_mib") or 0.0 for job, _ in pairs]
    return [
        _format(1000 * statistics.fmean(seconds) if seconds else None, ",.1f"),
        _format(statistics.fmean(ratios) if ratios else None, ".2f"),
        _format(max(memory) or None, ",.0f"),
    ]


def _seconds_per_step(job: Job | None) -> float | None:
    seconds, steps = (job.number(name) if job else None for name in ("seconds", "global_step"))
    return seconds / steps if seconds and steps else None
