"""All that a report is about, read once for the terminal, the spreadsheet and the page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import optuna

from ..directory import read_record
from .job_directories import jobs_of, name_of
from .job_results import Job, Objective, read_job, read_objectives
from .overrides import varying
from .study_of_jobs import study_of

# What stands first among the metrics, after the objectives.
PREFERRED = ("val/loss", "val/acc", "test/acc", "test/loss", "train/loss")


@dataclass(frozen=True)
class SweepResults:
    """One sweep, or several that are reported together."""

    title: str
    commands: list[str]
    """What was typed, as far as it is known."""
    is_search: bool
    objectives: list[Objective]
    jobs: list[Job]
    """In the order in which they were numbered."""
    keys: list[str]
    """Override keys that vary."""
    study: optuna.Study
    """The jobs as trials, in the same order."""

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, the objectives first."""
        found = {name for job in self.jobs for name in job.numbers if "/" in name}
        first = [name for name in PREFERRED if name in found]
        return list(dict.fromkeys([*(o.name for o in self.objectives), *first, *sorted(found)]))

    @property
    def counts(self) -> str:
        """How many jobs there are of each status: ``12 jobs: 11 finished, 1 failed``."""
        counts = Counter(job.status for job in self.ranked).most_common()
        jobs = "1 job" if len(self.jobs) == 1 else f"{len(self.jobs)} jobs"
        return f"{jobs}: " + ", ".join(f"{count} {status}" for status, count in counts)

    @cached_property
    def best(self) -> list[Job]:
        """The best of the finished jobs: one, or of several objectives the Pareto front."""
        front = [self.jobs[trial.number] for trial in self.study.best_trials]
        return front if len(self.objectives) > 1 else front[:1]

    @cached_property
    def ranked(self) -> list[Job]:
        """Jobs that finished, best first; then those that did not; last those without a value.

        A job that was stopped early is not compared with those that were not: it would win
        whenever less time or fewer steps are better.
        """

        def rank(job: Job) -> tuple[bool, bool, bool, list[float]]:
            costs = [
                -value if each.mode == "max" else value
                for each in self.objectives
                if (value := job.values[each.name]) is not None
            ]
            incomplete = not costs or len(costs) < len(self.objectives)
            return (incomplete, not job.finished, job not in self.best, costs)

        return sorted(self.jobs, key=rank)


def read_sweeps(directories: Sequence[Path]) -> SweepResults:
    """Read all jobs of some sweep or run directories.

    Raises:
        UserError: One of them is no such directory.
    """
    once = {each.resolve(): each for each in directories}
    sweeps = {directory: jobs_of(directory) for directory in once.values()}
    # All jobs are compared by the same numbers: those of the first job that names some.
    every = [path for typed in sweeps.values() for path in typed]
    objectives = next(filter(None, map(read_objectives, every)), [])
    jobs: list[Job] = []
    for directory, typed in sweeps.items():
        for path in typed:
            name = name_of(path)
            if len(sweeps) > 1:
                name = str(path if path == directory else directory / name)
            jobs.append(read_job(path, name, objectives, typed[path]))
    keys = varying([job.overrides for job in jobs])
    commands = [read_record(directory).get("command") for directory in sweeps]
    return SweepResults(
        title=", ".join(path.name for path in once),
        commands=[str(command) for command in commands if command],
        is_search=any((directory / "study.db").is_file() for directory in sweeps),
        objectives=objectives,
        jobs=jobs,
        keys=keys,
        study=study_of(jobs, objectives, keys),
    )
