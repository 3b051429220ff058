"""All that a report is about, gathered once for the table, the page and the pictures."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..place import read_record
from . import order, overrides
from .find import distinct_names, jobs_of, numbers_of
from .jobs import Job, read_job
from .objectives import Objective, of_job

# What stands first among the metrics, after the objectives.
PREFERRED = ("val/loss", "val/acc", "test/acc", "test/loss", "train/loss")


@dataclass(frozen=True)
class Contents:
    """One sweep, or several that are reported together."""

    title: str
    commands: list[str]
    """What was typed, as far as it is known."""
    objectives: list[Objective]
    jobs: list[Job]
    """Best first."""
    best: set[str]
    """Names of the best jobs."""
    keys: list[str]
    """Override keys that vary."""
    shared: dict[str, str]
    """Overrides that all jobs have."""
    studies: list[Path]
    """Databases of the searches among the sweeps."""

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, the objectives first."""
        found = {name for job in self.jobs for name in job.numbers if "/" in name}
        first = [each.name for each in self.objectives]
        first += [name for name in PREFERRED if name in found and name not in first]
        return first + sorted(found.difference(first))

    @property
    def counts(self) -> str:
        """How many jobs there are of each status: ``12 jobs: 11 finished, 1 failed``."""
        counts = Counter(job.status for job in self.jobs).most_common()
        jobs = "1 job" if len(self.jobs) == 1 else f"{len(self.jobs)} jobs"
        return f"{jobs}: " + ", ".join(f"{count} {status}" for status, count in counts)

    def in_order(self) -> list[Job]:
        """The jobs as they were numbered."""
        return sorted(self.jobs, key=lambda job: job.place)


def gather(directories: Sequence[Path]) -> Contents:
    """Read all jobs of some sweep or run directories.

    Raises:
        UserError: One of them is no such directory.
    """
    directories = list({each.resolve(): each for each in directories}.values())
    found = [(each, jobs_of(each)) for each in directories]
    every = [path for _, typed in found for path in typed]
    # All jobs are compared by the same numbers: those of the first job that names some.
    objectives = next(filter(None, map(of_job, every)), [])
    jobs: list[Job] = []
    for (directory, typed), sweep in zip(found, distinct_names(directories), strict=True):
        for name, path in zip(numbers_of(list(typed)), typed, strict=True):
            if path == directory:
                name = sweep
            elif len(found) > 1:
                name = f"{sweep}/{name}"
            jobs.append(read_job(path, name, len(jobs) + 1, objectives, typed[path]))
    keys = overrides.varying([job.overrides for job in jobs])
    return Contents(
        title=", ".join(distinct_names(directories)),
        commands=[command for each in directories for command in _command(each)],
        objectives=objectives,
        jobs=order.best_first(jobs, objectives),
        best=order.best(jobs, objectives),
        keys=keys,
        shared={key: text for key, text in jobs[0].overrides.items() if key not in keys},
        studies=[each / "study.db" for each in directories if (each / "study.db").is_file()],
    )


def _command(directory: Path) -> list[str]:
    command = read_record(directory).get("command")
    if isinstance(command, list):
        return [shlex.join(map(str, command))]
    return [str(command)] if command else []
