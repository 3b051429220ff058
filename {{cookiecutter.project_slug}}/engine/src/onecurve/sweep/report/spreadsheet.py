"""sweep.csv: a line for each job, best first, with everything that is known of it."""

import csv
from pathlib import Path

from .sweep_results import SweepResults

FIRST = ("job", "directory", "status", "error")


def write_spreadsheet(sweep: SweepResults, path: Path) -> None:
    """Write the file."""
    keys = dict.fromkeys(key for job in sweep.ranked for key in job.overrides)
    objectives = [each.name for each in sweep.objectives]
    numbers = {name for job in sweep.jobs for name in job.numbers}
    others = sorted(numbers.difference(objectives, keys, FIRST, ["strategy"]))
    columns = dict.fromkeys([*FIRST, *keys, "strategy", *objectives, *others])
    # Excel reads UTF-8 only where the file begins with a mark.
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        for job in sweep.ranked:
            own = (job.name, job.directory, job.status, job.error)
            # What was typed wins over a fact of the same name, an objective over a last value.
            line = {**job.numbers, **job.values, "strategy": job.strategy, **job.overrides}
            writer.writerow(line | dict(zip(FIRST, own, strict=True)))
