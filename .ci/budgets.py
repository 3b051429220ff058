"""Count the lines of each house against its budget: `make lint` fails when one is passed.

`[tool.budgets]` in onecurve/pyproject.toml has the limits. A limit only ever goes down, to its aim:
whoever makes a house smaller lowers its limit in the same commit.
"""

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "onecurve/src/onecurve"
APP = [LIBRARY / "app", LIBRARY / "cli.py"]
PLANNER = [LIBRARY / "planner"]


class Size(NamedTuple):
    """What there is of a house: files, their lines with docstrings and blanks, the longest file."""

    files: int
    lines: int
    longest: int

    @classmethod
    def of(cls, paths: Iterable[Path]) -> "Size":
        """The size of some Python files."""
        lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
        return cls(len(lengths), sum(lengths), max(lengths, default=0))


def python_files(*roots: Path) -> set[Path]:
    """All Python files below some folders, and those that are files themselves."""
    folders = [root for root in roots if root.is_dir()]
    below = {path for folder in folders for path in folder.rglob("*.py")}
    return below | {root for root in roots if root.is_file()}


def houses() -> dict[str, Size]:
    """The size of each house, by its name in `[tool.budgets]`."""
    everything, app, planner = (python_files(*at) for at in ([LIBRARY], APP, PLANNER))
    return {
        "library": Size.of(everything),
        "core": Size.of(everything - app - planner),
        "app": Size.of(app),
        "planner": Size.of(planner),
        "library_tests": Size.of(python_files(ROOT / "onecurve/tests")),
        "template_tests": Size.of(python_files(ROOT / "tests")),
        "benchmarks": Size.of(python_files(ROOT / "benchmarks")),
    }


def over_budget(budgets: dict[str, dict[str, int]], sizes: dict[str, Size]) -> list[str]:
    """One line for each limit that is passed."""
    return [
        f"{house}: {getattr(sizes[house], kind)} {kind}, and its budget is {limit}"
        for house, limits in budgets.items()
        for kind, limit in limits.items()
        if kind in Size._fields and getattr(sizes[house], kind) > limit
    ]


def main() -> int:
    """Print each house beside its budget; the exit status is 1 if one is passed."""
    with (ROOT / "onecurve/pyproject.toml").open("rb") as file:
        budgets = tomllib.load(file)["tool"]["budgets"]
    sizes = houses()
    for house, limits in budgets.items():
        size = sizes[house]
        aim = f", aim {limits['aim']}" if "aim" in limits else ""
        print(f"{house:15} {size.lines:6} lines of {limits['lines']}{aim}; {size.files} files")
    problems = over_budget(budgets, sizes)
    for line in problems:
        print(f"error: {line}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
