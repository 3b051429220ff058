"""What one job was, and what it came to, from the files that it left."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import objective
from ..curves import Curve, read_curves
from ..directory import read_yaml
from .overrides import parse

LOSS = "train/loss"
"""The metric that metrics.csv has for every step."""
COMPARED_STEPS = 50
"""Steps of which the losses of strategies are compared: later, rounding has grown too much."""
MOST_POINTS = 500
"""Points of a curve that is drawn: more cannot be told apart, and make a page slow."""


@dataclass(frozen=True)
class Objective:
    """A number that every job of the sweep is judged by."""

    name: str
    mode: str
    """"max" or "min"."""
    value: str
    """"last", or "best" of the run."""


@dataclass(frozen=True, eq=False)
class Job:
    """One job of a sweep."""

    name: str
    directory: Path
    overrides: dict[str, str]
    status: str
    """As in metrics.json; "not run" without that file."""
    error: str
    """Why it failed or diverged, in one line; else empty."""
    stopped: str
    """Why it ended before its last epoch: what ended it, and a sentence; else empty."""
    strategy: str
    """Name of the strategy that it ran under; empty if it did not get so far."""
    numbers: dict[str, float]
    """All numbers in metrics.json, metrics and facts alike; NaN is possible."""
    values: dict[str, float | None]
    """The value of each objective; None where it reached none that is finite."""
    curves: dict[str, Curve]
    """The training loss and the objectives, thinned."""

    @property
    def finished(self) -> bool:
        """Whether it came to its planned end."""
        return self.status == "finished"

    @property
    def failed(self) -> bool:
        """Whether something went wrong, of which `error` tells."""
        return self.status in ("failed", "diverged")

    def number(self, name: str) -> float | None:
        """An objective's value, or another number of metrics.json; None if it is not finite."""
        number = self.values[name] if name in self.values else self.numbers.get(name)
        return number if number is not None and math.isfinite(number) else None


def read_job(directory: Path, name: str, objectives: Sequence[Objective], typed: Any) -> Job:
    """Read a job's directory, however much of it there is by now."""
    found: dict[str, Any] = objective.metrics(directory)
    curves = read_curves(directory, [LOSS, *(each.name for each in objectives)])
    numbers = {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    values: dict[str, float | None] = {}
    for each in objectives:
        value = objective.read(directory, each.name, each.mode, each.value)
        values[each.name] = value if value is not None and math.isfinite(value) else None
    return Job(
        name=name,
        directory=directory,
        overrides=parse(typed),
        status=str(found.get("status", "unknown")) if found else "not run",
        error=" ".join(str(found.get("error") or "").split()),
        stopped=" ".join(str(found.get("stopped") or "").split()),
        strategy=str(found.get("strategy") or ""),
        numbers=numbers,
        values=values,
        curves={metric: _thinned(curve) for metric, curve in curves.items()},
    )


def read_objectives(run_dir: Path) -> list[Objective]:
    """The objectives in a job's config.yaml; empty if there is none that can be read."""
    config = read_yaml(run_dir / "config.yaml")
    if not isinstance(config, dict):
        return []
    search = config.get("sweep")
    search = search if isinstance(search, dict) else {}
    names = search.get("objective") or config.get("monitor") or []
    modes = search.get("direction") or config.get("mode") or "min"
    if isinstance(names, str):
        names, modes = [names], [modes]
    value = str(search.get("value", "last"))
    # A file that is only half written may end within a word.
    modes = ["max" if str(mode).startswith("max") else "min" for mode in modes]
    pairs = zip(names, modes, strict=False)
    return [Objective(str(name), mode, value) for name, mode in pairs]


def _thinned(curve: Curve) -> Curve:
    """All of the first points, which are compared; of the others evenly spaced ones."""
    # A run that went on writes a step twice where it had to go back: the later value counts.
    points = sorted(dict(curve).items())
    every = math.ceil(len(points) / MOST_POINTS) or 1
    return points[:COMPARED_STEPS] + points[COMPARED_STEPS::every]
