"""Your own table: a CSV file of numbers, whose first line names the columns."""

import csv
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch
from onecurve.errors import UserError
from torch import Tensor
from torch.utils.data import DataLoader

from .columns import header, shortened
from .table import Rows, Table


class CsvTable(Table):
    """The rows of a CSV file.

    Args:
        root: the file.
        options: those of `Table`.

    Raises:
        UserError: a feature that the file does not have, or that is the target.
    """

    def __init__(self, *, root: str, **options: Any) -> None:
        super().__init__(**options)
        self.root = root
        known = set(header(root)) - {self.target}
        for name in self.features:
            if name not in known:
                raise UserError(
                    f"data.features: {name} is {'the target' if name == self.target else 'no'} "
                    f"column of {root}; choose of {shortened(sorted(known))}"
                )

    def read(self) -> Rows:
        """Read all rows.

        Raises:
            UserError: a cell that is not a number, or a row of another length.
        """
        with Path(self.root).expanduser().open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader)]
            rows = [self._numbers(row, names, reader.line_num) for row in reader if row]
        table = torch.tensor(rows).reshape(len(rows), len(names))
        features = [names.index(name) for name in self.features]
        # Rows to predict need no target.
        known = self.target in names
        targets = table[:, names.index(self.target)] if known else table.new_full((len(rows),), nan)
        return table[:, features], targets

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Batches of all rows, in order."""
        return self._loader("all")

    def _numbers(self, row: list[str], names: list[str], line: int) -> list[float]:
        where = f"data.root={self.root}: line {line}"
        if len(row) != len(names):
            raise UserError(
                f"{where} has {len(row)} cells, the first line names {len(names)} columns; mend it"
            )
        numbers = [_number(cell) for cell in row]
        if not all(map(isfinite, numbers)):
            wrong = next(n for n, number in enumerate(numbers) if not isfinite(number))
            raise UserError(
                f"{where}, column {names[wrong]}: {row[wrong][:40]!r} is no number; "
                "fill it in, make numbers of words, or leave the line or the column out"
            )
        return numbers


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return nan
