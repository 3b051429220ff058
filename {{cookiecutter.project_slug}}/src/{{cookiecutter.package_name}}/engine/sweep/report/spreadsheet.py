"""sweep.csv: a line for each job, best first, with everything that is known of it."""

import csv
from pathlib import Path

from .contents import Contents
from .jobs import Job

FIRST = ("job", "directory", "status", "error")


def write(contents: Contents, path: Path) -> None:
    """Write the file."""
    keys = dict.fromkeys(key for job in contents.jobs for key in job.overrides)
    objectives = [each.name for each in contents.objectives]
    numbers = {name for job in contents.jobs for name in job.numbers}
    others = sorted(numbers.difference(objectives, keys, FIRST, ["strategy"]))
    columns = list(dict.fromkeys([*FIRST, *keys, "strategy", *objectives, *others]))
    # Excel reads UTF-8 only where the file begins with a mark.
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(_line(job, objectives) for job in contents.jobs)


def _line(job: Job, objectives: list[str]) -> dict[str, object]:
    # What was typed wins over a fact of the same name, and an objective over a last value.
    return {
        **job.numbers,
        **dict(zip(objectives, job.values, strict=True)),
        "strategy": job.strategy,
        **job.overrides,
        "job": job.name,
        "directory": str(job.directory),
        "status": job.status,
        "error": job.error,
    }
