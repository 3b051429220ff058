"""Which jobs there are, and where. Nothing heavy is imported here: mistakes are told at once."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....errors import UserError
from ..place import read_record, read_yaml

OVERRIDES = Path(".hydra/overrides.yaml")
"""What makes a directory that of a job."""


def jobs_of(directory: Path) -> dict[Path, list[Any]]:
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
        return {directory: _overrides(directory)}
    found = {path: _overrides(path) for path in directory.iterdir() if (path / OVERRIDES).is_file()}
    if not found:
        raise UserError(
            f"{directory}: no job in it (none of its directories has {OVERRIDES}); give the "
            "directory of a sweep, for example one of runs/*/*-sweep, or of a run"
        )
    numbers = {_number(path) for path in found}
    if None in numbers:
        return dict(sorted(found.items()))
    for number, typed in enumerate(read_record(directory).get("jobs") or [], start=1):
        if number not in numbers:
            found[directory / f"{number:02}"] = typed
    return dict(sorted(found.items(), key=lambda job: (_number(job[0]) or 0, job[0].name)))


def numbers_of(jobs: Sequence[Path]) -> list[str]:
    """The numbers that the names of a sweep's jobs begin with; else their places, from 1."""
    numbers = [_number(path) for path in jobs]
    if None in numbers or len(set(numbers)) < len(numbers):
        return [str(place) for place in range(1, len(jobs) + 1)]
    return [str(number) for number in numbers]


def distinct_names(directories: Sequence[Path]) -> list[str]:
    """A name for each directory: its last part, or as many as it takes to tell them apart."""
    paths = [path.resolve() for path in directories]
    names = [path.name or str(path) for path in paths]
    for parts in range(2, 5):
        if len(set(names)) == len(set(paths)):
            break
        names = [os.path.join(*path.parts[-parts:]) for path in paths]
    return names


def _overrides(job: Path) -> list[Any]:
    lines = read_yaml(job / OVERRIDES)
    return lines if isinstance(lines, list) else []


def _number(directory: Path) -> int | None:
    match = re.match(r"(\d{1,9})(-|$)", directory.name)
    return int(match.group(1)) if match else None
