"""Each cell of the table in cases.py: equal to a plain Trainer, or what is told instead."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
from cases import ALWAYS, CASES, STRATEGIES
from conftest import Shared
from table import PAGE, START, Outcome, column_of, printed

from onecurve.torch_versions import installed

CELLS = [(column, row) for column in STRATEGIES for row in CASES if column in CASES[row].under]


def is_quick(column: str, row: str) -> bool:
    """Whether `make test` runs a cell, one of each row: the first that is not just equal.

    Rows that are equal everywhere take turns at the strategies; a push runs all cells.
    """
    case, turns = CASES[row], [*CASES].index(row)
    columns = [name for name in case.under if name in ALWAYS[1:]] or [*case.under]
    told = [name for name in columns if name in case.cells]
    return column == (told[0] if told else columns[turns % len(columns)])


@pytest.fixture(scope="session")
def outcomes(shared: Shared, request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """``outcomes(column)``: its cells that are to be tested, in one go."""

    def of(column: str) -> Any:
        asked = [getattr(item, "callspec", None) for item in request.session.items]
        params = [spec.params for spec in asked if spec and {"column", "row"} <= spec.params.keys()]
        rows = [each["row"] for each in params if each["column"] == column]
        return shared(f"table, {column}", partial(column_of, column, rows))

    return cache(of)


@pytest.mark.compares
@pytest.mark.parametrize(
    ("column", "row"),
    [
        pytest.param(*cell, id=" - ".join(cell), marks=() if is_quick(*cell) else pytest.mark.long)
        for cell in CELLS
    ],
)
def test_cell(outcomes: Callable[[str], Any], column: str, row: str) -> None:
    found: Outcome = outcomes(column)[row]
    if found.kind == "rejected" and installed() < (2, 15):
        return  # an older PyTorch than that of the table can do less, which a line says
    cell = CASES[row].cells.get(column)
    if cell is None:
        assert (found.kind, found.text, found.said) == ("equal", "", "")
    elif cell.kind == "a line":
        assert found.kind == "equal", found.text
        assert cell.words in found.said
    else:
        assert found.kind == cell.kind, found.text
        assert cell.words in (found.text if cell.kind == "rejected" else found.text + found.said)
        assert cell.kind != "rejected" or len(found.text.splitlines()) == 1


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(START)[2].lstrip("\n") == printed(), (
        "docs/exact.md: print the table again, as tests/parity/table.py says"
    )
