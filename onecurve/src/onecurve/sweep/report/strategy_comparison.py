"""What each strategy costs, and that it changes nothing else: a comparison with ``single``."""

import math
import statistics
from collections.abc import Sequence

from .job_results import COMPARED_STEPS, LOSS, Job
from .overrides import shown
from .sweep_results import SweepResults
from .tables import Table, number_text

STRATEGY = "strategy"
REFERENCE = "single"
ROUNDING = 1e-5
"""Relative difference of the losses above which the table says how to tell what it comes from."""
NOTE = (
    "Under AdamW in float32 rounding can grow, for example to 0.01 after 50 steps; "
    "trainer.precision=64-true tells it from an error."
)


def compare_strategies(sweep: SweepResults) -> Table | None:
    """A row for each strategy, the reference first; None if only one was swept.

    Each job is compared with that of the reference which is otherwise equal. Of a strategy's jobs
    the table has the largest relative difference of the training loss in the first steps, the mean
    time of a step, alone and over that of the reference, and the largest peak memory.
    """
    names = list(dict.fromkeys(_name(job) for job in sweep.jobs))
    if STRATEGY not in sweep.keys or len(names) < 2:
        return None
    reference = REFERENCE if REFERENCE in names else names[0]
    names.sort(key=lambda name: name != reference)
    # A choice within a strategy, such as strategy.schedule, belongs to it.
    others = [key for key in sweep.keys if key != STRATEGY and not key.startswith("strategy.")]

    def rest(job: Job) -> tuple[str, ...]:
        return tuple(job.overrides.get(key, "") for key in others)

    references = {rest(job): job for job in reversed(sweep.jobs) if _name(job) == reference}
    pairs: dict[str, list[tuple[Job, Job | None]]] = {name: [] for name in names}
    for job in sweep.jobs:
        pairs[_name(job)].append((job, references.get(rest(job))))
    differences = {name: _largest_difference(pairs[name]) for name in names}
    heads = ["strategy", f"loss difference, {COMPARED_STEPS} steps", "ms per step"]
    heads += [f"× {reference}", "peak memory, MiB"]
    rows = [[name, number_text(differences[name], ".1e"), *_costs(pairs[name])] for name in names]
    note = NOTE if any((each or 0) > ROUNDING for each in differences.values()) else ""
    title = f"Strategies, compared with {reference}"
    return Table(title, heads, rows, least=len(heads), note=note)


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
        number_text(1000 * statistics.fmean(seconds) if seconds else None, ",.1f"),
        number_text(statistics.fmean(ratios) if ratios else None, ".2f"),
        number_text(max(memory) or None, ",.0f"),
    ]


def _seconds_per_step(job: Job | None) -> float | None:
    seconds, steps = (job.number(name) if job else None for name in ("seconds", "global_step"))
    return seconds / steps if seconds and steps else None


def _name(job: Job) -> str:
    chosen = shown(job.overrides.get(STRATEGY) or job.strategy)
    details = [
        f"{key.removeprefix('strategy.')}={text}"
        for key, text in job.overrides.items()
        if key.lstrip("+").startswith("strategy.")
    ]
    return f"{chosen} ({', '.join(details)})" if details else chosen
