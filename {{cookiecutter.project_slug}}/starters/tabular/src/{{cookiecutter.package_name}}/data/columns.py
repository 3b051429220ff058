"""Reads the columns of a table, before torch is imported."""

import csv
from pathlib import Path

from onecurve.errors import UserError

EXAMPLE = "for example data.root=houses.csv data.target=price, or use data=diabetes"


def feature_columns(root: str, target: str) -> list[str]:
    """The names of a CSV file's columns, from its first line, without the target's.

    Raises:
        UserError: there is no such file, or its first line does not name these columns.
    """
    names = header(root)
    if target not in names:
        raise UserError(
            f"data.target={target}: {root} has no such column, it has {shortened(names)}; "
            f"try data.target={names[-1]}"
        )
    if len(names) < 2:
        raise UserError(f"data.root={root}: has no column beside the target; {EXAMPLE}")
    return [name for name in names if name != target]


def header(root: str) -> list[str]:
    """The cells of a CSV file's first line."""
    path = Path(root).expanduser()
    if not path.is_file():
        raise UserError(f"data.root={root}: no such file; give a CSV file, {EXAMPLE}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            names = [name.strip() for name in next(csv.reader(file), [])]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"data.root={root}: cannot be read ({error}); {EXAMPLE}") from error
    if not all(names) or len(set(names)) < len(names) or not names:
        raise UserError(
            f"data.root={root}: its first line has to name each column, once, separated by commas "
            f"(it reads {shortened(names)}); {EXAMPLE}"
        )
    return names


def shortened(names: list[str]) -> str:
    """The first names, for an error line."""
    return (", ".join(names[:8]) + (", ..." if len(names) > 8 else ""))[:200] or "nothing"
