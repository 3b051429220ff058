"""The course of a metric through a run, from metrics.csv."""

import csv
from collections.abc import Collection
from pathlib import Path

Curve = list[tuple[int, float]]
"""Step and value of each line that has the metric, as they were written."""


def read_curves(run_dir: Path, names: Collection[str]) -> dict[str, Curve]:
    """The curves of some metrics; that of a metric which the run has not logged is empty.

    The file is read once for all of them. A line that a running job has only half written is
    passed over.

    Args:
        run_dir: A run directory.
        names: Metrics, such as "train/loss".
    """
    found: dict[str, Curve] = {name: [] for name in names}
    try:
        with (run_dir / "metrics.csv").open(newline="", errors="replace") as file:
            rows = csv.reader(file)
            head = next(rows, [])
            columns = [(head.index(name), found[name]) for name in found if name in head]
            step = head.index("step") if "step" in head else len(head)
            for row in rows:
                for column, curve in columns:
                    try:
                        if row[column]:
                            curve.append((int(row[step]), float(row[column])))
                    except (ValueError, IndexError):
                        break
    except (OSError, csv.Error):
        pass
    return found
