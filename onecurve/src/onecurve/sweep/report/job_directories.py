"""Which jobs there are, and where."""

import re
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..directory import read_record, read_yaml

OVERRIDES = ".hydra/overrides.yaml"
"""What makes a directory that of a job."""


def jobs_of(directory: Path) -> dict[Path, Any]:
    """The jobs of a sweep directory in order; a run directory is its own only job.

    Returns:
        The overrides of each job by its directory, which a job that has not begun lacks.

    Raises:
        UserError: There is no such directory, or no job in it.
    """
    if not directory.is_dir():
        raise UserError(
            f"{directory}: there is no such directory; give that of a sweep, "
            "for example one of runs/*/*-sweep"
        )
    if (directory / OVERRIDES).is_file():
        return {directory: read_yaml(directory / OVERRIDES)}
    found = {path.parent.parent: read_yaml(path) for path in directory.glob(f"*/{OVERRIDES}")}
    if not found:
        raise UserError(
            f"{directory}: no job in it (none of its directories has {OVERRIDES}); give the "
            "directory of a sweep, for example one of runs/*/*-sweep, or of a run"
        )
    begun = {name_of(path) for path in found}
    for number, typed in enumerate(read_record(directory).get("jobs") or [], start=1):
        if str(number) not in begun:
            found[directory / f"{number:02}"] = typed

    def place(job: tuple[Path, Any]) -> tuple[int, str]:
        name = name_of(job[0])
        return (int(name) if name.isdigit() else 0, name)

    return dict(sorted(found.items(), key=place))


def name_of(job: Path) -> str:
    """The number that the name of a job's directory begins with; without one all of the name."""
    match = re.match(r"(\d{1,9})(-|$)", job.name)
    return str(int(match.group(1))) if match else job.name
