"""The number by which the jobs of a sweep are compared, read from what a job left behind."""

import json
import math
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import UserError
from .curves import read_curves


def read(run_dir: Path, name: str, mode: str, value: str = "last") -> float | None:
    """The value of a metric that a run reached.

    Args:
        run_dir: A run directory.
        name: A metric, such as "val/acc", or another number in metrics.json, such as "seconds".
        mode: "max" or "min": which way is better.
        value: "last", or "best" of all that metrics.csv holds.

    Returns:
        The value; None if the run has none.
    """
    if value == "best":
        curve = read_curves(run_dir, [name])[name]
        numbers = [number for _, number in curve if math.isfinite(number)]
        if numbers:
            return max(numbers) if mode == "max" else min(numbers)
    last = metrics(run_dir).get(name)
    return float(last) if isinstance(last, int | float) else None


def metrics(run_dir: Path) -> dict[str, object]:
    """metrics.json of a run; empty if there is none."""
    try:
        content = json.loads((run_dir / "metrics.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def objectives(search: Any) -> list[tuple[str, str]]:
    """Name and direction ("min" or "max") of what is searched for: one, or several.

    Args:
        search: The group `sweep` of a search.

    Raises:
        UserError: If there is not one direction for each.
    """
    names, directions = (
        [value] if isinstance(value, str) else list(value)
        for value in (search.objective, search.direction)
    )
    if len(names) != len(directions) or not set(directions) <= {"min", "max"}:
        raise UserError(
            f"sweep.direction={_text(directions)}: must be min or max for each of "
            f"sweep.objective={_text(names)}, such as "
            f"sweep.direction={_text(['max'] * len(names))}"
        )
    return list(zip(names, directions, strict=True))


def refuse_unknown(name: str, known: list[str]) -> None:
    """Refuse an objective that is not among what a run has.

    Raises:
        UserError: With the nearest names.
    """
    if name in known:
        return
    near = get_close_matches(name, known, 3, cutoff=0.5) or [key for key in known if "/" in key]
    raise UserError(
        f"sweep.objective={name}: nothing logs a metric of that name; nearest are "
        f"{', '.join(near)}, such as sweep.objective={near[0] if near else 'val/loss'}"
    )


def _text(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"[{','.join(values)}]"
