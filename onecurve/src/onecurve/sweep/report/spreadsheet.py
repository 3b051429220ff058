"""sweep.csv: a line for each job, best first, with everything that is known of it."""

import csv
from pathlib import Path
from typing import Any

from .overrides import as_number
from .sweep_results import SweepResults

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
FIRST = ("job", "directory", "status", "error", "stopped")


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
        writer.writerow({column: as_text(column) for column in columns})
        for job in sweep.ranked:
            own = (job.name, job.directory, job.status, job.error, job.stopped)
            # What was typed wins over a fact of the same name, an objective over a last value.
            line: dict[str, Any] = {
                **job.numbers,
                **job.values,
                "strategy": job.strategy,
                **job.overrides,
            }
            line |= dict(zip(FIRST, own, strict=True))
            writer.writerow({column: as_text(value) for column, value in line.items()})


def as_text(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula, and runs: `+` begins one, too."""
    is_formula = isinstance(cell, str) and cell.startswith(FORMULAS) and as_number(cell) is None
    return f"'{cell}" if is_formula else cell
