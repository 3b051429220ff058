"""Jobs that differ in nothing but the seed, taken together: mean ± standard deviation."""

import math
import statistics
from collections.abc import Sequence

from .job_results import Job
from .overrides import label
from .sweep_results import SweepResults
from .tables import Table

SEED = "seed"


def seed_means(sweep: SweepResults) -> Table | None:
    """A row for each configuration, best mean first; None unless one has several seeds.

    Only jobs that finished count. The standard deviation is that of a sample.
    """
    keys = [key for key in sweep.keys if key != SEED]
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in sweep.jobs:
        groups.setdefault(tuple(job.overrides.get(key, "") for key in keys), []).append(job)
    if SEED not in sweep.keys or len(groups) == len(sweep.jobs):
        return None

    def cost(jobs: list[Job]) -> float:
        """What to sort by: the mean of the first objective, so that less is better."""
        values = _values(jobs, sweep.objectives[0].name) if sweep.objectives else []
        if not values:
            return math.inf
        mean = statistics.fmean(values)
        return -mean if sweep.objectives[0].mode == "max" else mean

    rows = []
    for jobs in sorted(groups.values(), key=cost):
        finished = sum(job.finished for job in jobs)
        count = str(len(jobs)) if finished == len(jobs) else f"{finished} of {len(jobs)}"
        means = [_mean(_values(jobs, name)) for name in sweep.metrics]
        rows.append([label(jobs[0].overrides, keys) or "all jobs", count, *means])
    title, heads = "Mean ± standard deviation over seeds", ["configuration", "n", *sweep.metrics]
    return Table(title, heads, rows, least=2 + len(sweep.objectives))


def _values(jobs: Sequence[Job], name: str) -> list[float]:
    values = [job.number(name) for job in jobs if job.finished]
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"
