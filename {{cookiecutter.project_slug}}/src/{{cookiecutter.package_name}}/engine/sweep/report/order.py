"""Which jobs are better: by one objective, or by several of which none is sacrificed."""

from collections.abc import Sequence

from .jobs import Job
from .objectives import Objective


def best_first(jobs: Sequence[Job], objectives: Sequence[Objective]) -> list[Job]:
    """Jobs that finished, best first; then those that did not; last those without a value.

    A job that was stopped early is not compared with those that were not: it would win whenever
    less time or fewer steps are better.
    """
    front = {job.name for job in pareto_front(jobs, objectives)} if len(objectives) > 1 else set()

    def rank(job: Job) -> tuple[bool, bool, bool, list[float], int]:
        costs = [
            each.sign * value
            for each, value in zip(objectives, job.values, strict=True)
            if value is not None
        ]
        complete = bool(objectives) and len(costs) == len(objectives)
        return (not complete, not job.finished, job.name not in front, costs, job.place)

    return sorted(jobs, key=rank)


def best(jobs: Sequence[Job], objectives: Sequence[Objective]) -> set[str]:
    """Names of the best of the finished jobs: one, or with several objectives the Pareto front."""
    if len(objectives) > 1:
        return {job.name for job in pareto_front(jobs, objectives)}
    first = best_first(jobs, objectives)[:1]
    return {job.name for job in first if objectives and job.finished and job.values[0] is not None}


def pareto_front(jobs: Sequence[Job], objectives: Sequence[Objective]) -> list[Job]:
    """The finished jobs that no other beats in one objective without losing in another."""
    costs = {
        job.name: [
            each.sign * value
            for each, value in zip(objectives, job.values, strict=True)
            if value is not None
        ]
        for job in jobs
        if job.finished and None not in job.values
    }

    def beaten(own: list[float]) -> bool:
        return any(
            other != own and all(theirs <= mine for theirs, mine in zip(other, own, strict=True))
            for other in costs.values()
        )

    return [job for job in jobs if job.name in costs and not beaten(costs[job.name])]
