"""A small table where a run in an empty folder looks, and tables that no run can be made of."""

from pathlib import Path

import pytest

# What a choice needs beside its name.
NEEDS = {"data/csv": ("data.root=houses.csv", "data.target=price")}
HEAD = "area,rooms,price\n"


def write_houses(folder: Path, count: int = 100) -> None:
    """A table in which the price follows from the rest."""
    rows = [(40 + 7 * n % 90, 1 + n // 4 % 5) for n in range(count)]
    lines = [f"{area},{rooms},{area * 3000 + rooms * 10000}" for area, rooms in rows]
    (folder / "houses.csv").write_text(HEAD + "\n".join(lines) + "\n")


@pytest.fixture
def small_data(tmp_path: Path) -> None:
    """The table houses.csv."""
    write_houses(tmp_path)
