"""What each strategy costs, and that it changes nothing else: a comparison with ``single``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .contents import Contents
from .curves import Curve
from .groups import spread
from .jobs import LOSS, Job
from .overrides import shown

STRATEGY = "strategy"
REFERENCE = "single"
MEMORY = "peak_memory_mib"
FIRST_STEPS = 50
"""Steps of which the loss is compared: the rounding of the first is an avalanche in the end."""


@dataclass(frozen=True)
class Comparison:
    """One strategy beside the reference, over all pairs of jobs that are otherwise equal."""

    strategy: str
    reference: str
    jobs: int
    difference: float | None
    """Largest relative difference of the training loss in the first steps; None if none is common.
    """
    steps: int
    """Steps that were compared."""
    seconds_per_step: float | None
    ratio: float | None
    """Seconds per step over those of the reference."""
    memory: float | None
    """Largest peak memory, MiB."""


def compare(contents: Contents) -> list[Comparison]:
    """One row for each strategy, the reference first; empty if only one was swept."""
    jobs = contents.in_order()
    names = list(dict.fromkeys(_name(job) for job in jobs))
    if STRATEGY not in contents.keys or len(names) < 2:
        return []
    reference = REFERENCE if REFERENCE in names else names[0]
    names.sort(key=lambda name: name != reference)
    # A choice within a strategy, such as strategy.schedule, belongs to it.
    others = [key for key in contents.keys if key != STRATEGY and not key.startswith("strategy.")]
    references: dict[tuple[str, ...], Job] = {}
    for job in jobs:
        if _name(job) == reference:
            references.setdefault(_values(job, others), job)
    pairs = [(job, references.get(_values(job, others))) for job in jobs]
    return [
        _row(name, reference, [pair for pair in pairs if _name(pair[0]) == name]) for name in names
    ]


def _row(name: str, reference: str, pairs: Sequence[tuple[Job, Job | None]]) -> Comparison:
    differences: list[float] = []
    ratios: list[float] = []
    steps = 0
    for job, other in pairs:
        if other is None:
            continue
        if LOSS in job.curves and LOSS in other.curves:
            found = differences_at_steps(job.curves[LOSS], other.curves[LOSS])
            steps += len(found)
            differences += [float(found.max())] if len(found) else []
        own, theirs = _seconds_per_step(job), _seconds_per_step(other)
        if own and theirs:
            ratios.append(own / theirs)
    seconds = spread([_seconds_per_step(job) for job, _ in pairs])
    ratio = spread(ratios)
    return Comparison(
        strategy=name,
        reference=reference,
        jobs=len(pairs),
        difference=max(differences, default=None),
        steps=steps,
        seconds_per_step=seconds.mean if seconds else None,
        ratio=ratio.mean if ratio else None,
        memory=max((job.fact(MEMORY) or 0.0 for job, _ in pairs), default=0.0) or None,
    )


def differences_at_steps(one: Curve, other: Curve) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Relative differences at the first steps that two curves share."""
    _, mine, theirs = np.intersect1d(one.steps, other.steps, return_indices=True)
    a, b = one.values[mine], other.values[theirs]
    with np.errstate(all="ignore"):
        found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.abs(a - b) / np.maximum(
            np.abs(b), 1e-12
        )
    found = found[:FIRST_STEPS]
    return found[np.isfinite(found)]


def _name(job: Job) -> str:
    chosen = job.overrides.get(STRATEGY) or job.strategy
    details = [
        f"{key.removeprefix('strategy.')}={text}"
        for key, text in job.overrides.items()
        if key.lstrip("+").startswith("strategy.")
    ]
    return shown(chosen) + (f" ({', '.join(details)})" if details else "")


def _values(job: Job, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(job.overrides.get(key, "") for key in keys)


def _seconds_per_step(job: Job) -> float | None:
    seconds, steps = job.fact("seconds"), job.fact("global_step")
    return seconds / steps if seconds and steps else None
