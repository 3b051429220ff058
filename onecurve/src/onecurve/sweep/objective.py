"""What a run reached: its metrics.json, its curves, and the objective that a sweep compares."""

import csv
import json
import math
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import UserError

Curve = list[tuple[int, float]]
"""Step and value of every line of metrics.csv that has the metric, in the order of the file."""


def read_metrics(run_dir: Path) -> dict[str, Any]:
    """metrics.json of a run; empty if there is none, or if it is only half written."""
    try:
        content = json.loads((run_dir / "metrics.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_curves(run_dir: Path, names: Collection[str]) -> dict[str, Curve]:
    """The curves of some metrics, by name; that of a metric which was not logged is empty.

    A line that a running job has only half written is skipped.
    """
    curves: dict[str, Curve] = {name: [] for name in names}
    try:
        with (run_dir / "metrics.csv").open(newline="", errors="replace") as file:
            rows = csv.reader(file)
            head = next(rows, [])
            columns = [(head.index(name), curves[name]) for name in curves if name in head]
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
    return curves


def reached(run_dir: Path, name: str, mode: str, value: str = "last") -> float | None:
    """The value of a metric that a run reached; None if it has none.

    Args:
        run_dir: A run directory.
        name: A metric, such as "val/acc", or another number in metrics.json, such as "seconds".
        mode: "max" or "min": which way is better.
        value: "last", or "best" of all values in metrics.csv.
    """
    if value == "best":
        curve = read_curves(run_dir, [name])[name]
        if numbers := [number for _, number in curve if math.isfinite(number)]:
            return max(numbers) if mode == "max" else min(numbers)
    last = read_metrics(run_dir).get(name)
    return float(last) if isinstance(last, int | float) else None


def objectives(search: Any) -> list[tuple[str, str]]:
    """Name and direction ("min" or "max") of each objective of a search, from its group `sweep`.

    Raises:
        UserError: If there is not one direction for each objective.
    """
    names, directions = (
        [value] if isinstance(value, str) else list(value)
        for value in (search.objective, search.direction)
    )
    if len(names) != len(directions) or not set(directions) <= {"min", "max"}:
        raise UserError(
            f"sweep.direction={_as_override(directions)}: must be min or max for each of "
            f"sweep.objective={_as_override(names)}, such as "
            f"sweep.direction={_as_override(['max'] * len(names))}"
        )
    return list(zip(names, directions, strict=True))


def validate_objective(name: str, known: list[str]) -> None:
    """Reject an objective that is not among the numbers of a run.

    Raises:
        UserError: With the closest names.
    """
    if name in known:
        return
    close = get_close_matches(name, known, 3, cutoff=0.5) or [key for key in known if "/" in key]
    raise UserError(
        f"sweep.objective={name}: nothing logs a metric of that name; nearest are "
        f"{', '.join(close)}, such as sweep.objective={close[0] if close else 'val/loss'}"
    )


def _as_override(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"[{','.join(values)}]"
