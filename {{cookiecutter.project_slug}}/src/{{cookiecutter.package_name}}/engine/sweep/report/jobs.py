"""What one job was, and what it came to, from the files that it left."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import objective
from ..place import TRACEBACK
from . import curves
from .curves import Curve
from .objectives import Objective
from .overrides import parse

LOSS = "train/loss"
"""The metric that metrics.csv has for every step."""


@dataclass(frozen=True)
class Job:
    """One job of a sweep."""

    name: str
    """How the report calls it: its number, after the sweep's name where there are several."""
    place: int
    """Its place among all jobs of the report, from 1."""
    directory: Path
    overrides: dict[str, str]
    status: str
    """As in metrics.json; "not run" without that file."""
    error: str
    """Why it failed or diverged, in one line; else empty."""
    strategy: str
    """Name of the strategy that it ran under; empty if it did not get so far."""
    numbers: dict[str, float]
    """All numbers in metrics.json, metrics and facts alike; NaN is possible."""
    values: tuple[float | None, ...]
    """The value of each objective; None where it reached none that is finite."""
    curves: dict[str, Curve]
    """The training loss and the objectives, as far as metrics.csv has them."""

    @property
    def finished(self) -> bool:
        """Whether it came to its planned end."""
        return self.status == "finished"

    @property
    def traceback(self) -> Path | None:
        """The file with the traceback of a job that failed."""
        path = self.directory / TRACEBACK
        return path if path.is_file() else None

    def fact(self, name: str) -> float | None:
        """A finite number of metrics.json."""
        number = self.numbers.get(name)
        return number if number is not None and math.isfinite(number) else None


def read_job(
    directory: Path, name: str, place: int, objectives: Sequence[Objective], typed: Sequence[Any]
) -> Job:
    """Read a job's directory, however much of it there is by now."""
    found: dict[str, Any] = objective.metrics(directory)
    wanted = [LOSS, *(each.name for each in objectives)]
    return Job(
        name=name,
        place=place,
        directory=directory,
        overrides=parse(typed),
        status=str(found.get("status", "unknown")) if found else "not run",
        error=" ".join(str(found.get("error") or "").split()),
        strategy=str(found.get("strategy") or ""),
        numbers={key: float(value) for key, value in found.items() if _is_number(value)},
        values=tuple(_reached(directory, each) for each in objectives),
        curves=curves.read(directory, dict.fromkeys(wanted)),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reached(directory: Path, wanted: Objective) -> float | None:
    # A file that is only half written is no value yet.
    with suppress(ValueError, KeyError, TypeError):
        value = objective.read(directory, wanted.name, wanted.mode, wanted.value)
        return value if value is not None and math.isfinite(value) else None
    return None
