"""The course of a metric through a run, from metrics.csv."""

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

MOST_POINTS = 500
"""Points of a curve that is drawn: more cannot be told apart, and make a page slow."""


@dataclass(frozen=True)
class Curve:
    """A metric's values, with the step and the epoch of each."""

    steps: Numbers
    epochs: Numbers
    values: Numbers

    def __len__(self) -> int:
        return len(self.values)

    def thinned(self) -> "Curve":
        """Evenly spaced points of it, first and last among them."""
        if len(self) <= MOST_POINTS:
            return self
        kept = np.linspace(0, len(self) - 1, MOST_POINTS).round().astype(int)
        return Curve(self.steps[kept], self.epochs[kept], self.values[kept])


def read(run_dir: Path, names: Collection[str]) -> dict[str, Curve]:
    """The curves of some metrics; those that the file does not have are left out.

    The file is read once for all of them. A line that a running job has only half written is
    passed over.
    """
    points: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    try:
        with (run_dir / "metrics.csv").open(newline="", errors="replace") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            columns = [(header.index(name), points[name]) for name in names if name in header]
            if "step" in header and columns:
                step = header.index("step")
                epoch = header.index("epoch") if "epoch" in header else step
                for row in rows:
                    _add(row, step, epoch, columns)
    except (OSError, csv.Error):
        pass
    return {name: _curve(found) for name, found in points.items() if found}


def _add(
    row: Sequence[str],
    step: int,
    epoch: int,
    columns: Sequence[tuple[int, list[tuple[float, float, float]]]],
) -> None:
    for column, points in columns:
        try:
            if row[column]:
                points.append((float(row[step]), float(row[epoch] or "nan"), float(row[column])))
        except (ValueError, IndexError):
            return


def _curve(points: list[tuple[float, float, float]]) -> Curve:
    # A run that went on writes a step twice where it had to go back: the later value counts.
    latest = np.array(list({point[0]: point for point in points}.values()))
    latest = latest[np.argsort(latest[:, 0], kind="stable")]
    return Curve(latest[:, 0], latest[:, 1], latest[:, 2])
