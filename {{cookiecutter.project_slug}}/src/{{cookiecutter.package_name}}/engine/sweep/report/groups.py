"""Jobs that differ in nothing but the seed, taken together: mean ± standard deviation."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .contents import Contents
from .jobs import Job
from .overrides import label

SEED = "seed"


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of some numbers."""

    mean: float
    deviation: float | None
    """None of a single number."""
    count: int

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.4g}"
        return f"{self.mean:.4g} ± {self.deviation:.2g}"


@dataclass(frozen=True)
class Configuration:
    """The jobs of one configuration."""

    label: str
    jobs: list[Job]

    @property
    def finished(self) -> list[Job]:
        """Those that count."""
        return [job for job in self.jobs if job.finished]

    def objective(self, index: int) -> Spread | None:
        """What an objective came to; None if no job finished with a value."""
        return spread([job.values[index] for job in self.finished])

    def metric(self, name: str) -> Spread | None:
        """What a metric came to; None if no finished job has it."""
        return spread([job.fact(name) for job in self.finished])


def counted(configuration: Configuration) -> str:
    """How many jobs a mean is of: ``5``, or ``4 of 5`` where one did not finish."""
    finished, jobs = len(configuration.finished), len(configuration.jobs)
    return str(jobs) if finished == jobs else f"{finished} of {jobs}"


def spread(numbers: Sequence[float | None]) -> Spread | None:
    """The mean and standard deviation of those that are there."""
    there = [number for number in numbers if number is not None]
    if not there:
        return None
    deviation = statistics.stdev(there) if len(there) > 1 else None
    return Spread(statistics.fmean(there), deviation, len(there))


def over_seeds(contents: Contents) -> list[Configuration]:
    """One entry for each configuration, best mean first; empty unless seeds were repeated."""
    if SEED not in contents.keys:
        return []
    found = configurations(contents)
    return found if any(len(each.jobs) > 1 for each in found) else []


def configurations(contents: Contents) -> list[Configuration]:
    """The jobs by what varies beside the seed, best mean of the first objective first."""
    keys = [key for key in contents.keys if key != SEED]
    found: dict[tuple[str, ...], list[Job]] = {}
    for job in contents.jobs:
        found.setdefault(tuple(job.overrides.get(key, "") for key in keys), []).append(job)
    result = [
        Configuration(label(jobs[0].overrides, keys) or "all jobs", jobs) for jobs in found.values()
    ]

    def cost(configuration: Configuration) -> tuple[bool, float]:
        mean = configuration.objective(0) if contents.objectives else None
        return (mean is None, contents.objectives[0].sign * mean.mean if mean else 0.0)

    return sorted(result, key=cost)
