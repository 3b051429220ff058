"""A small table where a run in an empty folder looks, and tables that no run can be made of."""

from pathlib import Path

import pytest

HOUSES = "data=csv data.root=houses.csv data.target=price"
# What is typed, and what the line must say, beside files of `write_broken`.
MISTAKES = {
    "data=csv": "data.root is needed",
    "data=csv data.root=houses.csv": "data.target is needed",
    "data=csv data.root=nowhere.csv data.target=price": "data.root=nowhere.csv: no such file",
    "data=csv data.root=houses.csv data.target=prize": "has no such column, it has area, rooms",
    "data=csv data.root=empty.csv data.target=price": "has to name each column",
    "data=csv data.root=twice.csv data.target=price": "has to name each column, once",
    "data=csv data.root=alone.csv data.target=price": "has no column beside the target",
    "data=csv data.root=words.csv data.target=price": "line 3, column rooms: 'three' is no number",
    "data=csv data.root=gap.csv data.target=price strategy=ddp": "column rooms: '' is no number",
    "data=csv data.root=short.csv data.target=price": "line 3 has 2 cells",
    "data=csv data.root=few.csv data.target=price": "3 rows cannot be split",
    f"{HOUSES} data.features=[room]": "room is no column of houses.csv",
    f"{HOUSES} data.features=[price]": "price is the target column",
    "data=csv data.root=photo.csv data.target=price": "data.root=photo.csv: cannot be read",
    "data.val_fraction=1.5": "data.val_fraction=1.5: must be a number",
    "data.val_fraction=0.5 data.test_fraction=0.5": "442 rows cannot be split",
    "model.hidden=[0]": "model.hidden=[0]",
}
# What a choice needs beside its name.
NEEDS = {"data/csv": ("data.root=houses.csv", "data.target=price")}
HEAD = "area,rooms,price\n"
BROKEN = {
    "empty.csv": "",
    "twice.csv": "area,price,area\n1,2,3\n",
    "alone.csv": "price\n1\n2\n",
    "words.csv": HEAD + "70,3,200\n80,three,250\n",
    "gap.csv": HEAD + "70,3,200\n80,,250\n",
    "short.csv": HEAD + "70,3,200\n80,250\n",
    "few.csv": HEAD + "70,3,200\n" * 3,
}


def write_houses(folder: Path, count: int = 100) -> None:
    """A table in which the price follows from the rest."""
    rows = [(40 + 7 * n % 90, 1 + n // 4 % 5) for n in range(count)]
    lines = [f"{area},{rooms},{area * 3000 + rooms * 10000}" for area, rooms in rows]
    (folder / "houses.csv").write_text(HEAD + "\n".join(lines) + "\n")


def write_broken(folder: Path) -> None:
    write_houses(folder)
    for name, text in BROKEN.items():
        (folder / name).write_text(text)
    (folder / "photo.csv").write_bytes(b"\x89PNG\xff\xfe")


@pytest.fixture
def small_data(tmp_path: Path) -> None:
    """The table houses.csv."""
    write_houses(tmp_path)
