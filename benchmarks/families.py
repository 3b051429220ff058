"""Networks that people bring: whether each family trains under each strategy as in one process.

Networks of transformers, torch.nn, torchvision and timm, tiny and random, in tasks as strangers
write them: ``self.model(**batch).loss``, or a loss of ``self.model(inputs)``.

    python benchmarks/families.py [--rows WORD ...] [--columns WORD ...]

A cell is the largest relative difference that `onecurve.parity` finds beside a plain Trainer, over
six steps in float64 with an uneven last batch: of losses, gradient norms, logged values, weights,
and a resume in the middle. A second table has the bytes of parameters that a rank holds, by those
of one process. Of rows and columns those are taken whose names have one of the words in them.

transformers computes some norms and the loss over tokens in float32 whatever the precision, where
nothing below its rounding can be seen: here they are computed in float64. Needs transformers and
timm, which the library does not.

Exit status 1 if a cell is above its limit, or rejected.
"""

import argparse
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

import onecurve
from onecurve.parity.runs import Comparison, compare_in_rank

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "onecurve/tests/harness"))

import warm_ranks

try:
    import transformers
    from family_networks import ROWS, Row, Trained
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is missing: type .venv/bin/uv pip install transformers timm")

LIMIT = 1e-11
STEPS, BATCH = 6, 8


def pipeline(schedule: Any, row: Row) -> Any:
    """Of two stages or more."""
    return onecurve.Pipeline(schedule=schedule, microbatches=2, timeout_seconds=60)


class Column(NamedTuple):
    """A strategy for a row, and its ranks."""

    strategy: Callable[[Row], Any]
    ranks: int = 2


SHORT: dict[str, Any] = {"timeout_seconds": 60}
COLUMNS = {
    "ddp": Column(lambda row: onecurve.DDP(**SHORT)),
    "fsdp": Column(lambda row: onecurve.FSDP(min_params=1, **SHORT)),
    "tensor": Column(lambda row: onecurve.Tensor(**SHORT)),
    "pipeline gpipe": Column(partial(pipeline, "gpipe")),
    "pipeline 1f1b": Column(partial(pipeline, "1f1b")),
    "pipeline zbv": Column(partial(pipeline, "zbv")),
    "shard x tensor": Column(
        lambda row: onecurve.mesh(shard=2, tensor=2, min_params=1, **SHORT), ranks=4
    ),
    "pipeline x tensor": Column(
        lambda row: onecurve.mesh(pipeline=2, tensor=2, schedule="gpipe", microbatches=2, **SHORT),
        ranks=4,
    ),
}


BY_SCHEDULE = ("pipeline 1f1b", "pipeline zbv")


@contextmanager
def in_float64() -> Iterator[None]:
    """Let what asks for float32 get float64."""
    with (
        patch.object(torch, "float32", torch.float64),
        patch.object(torch, "float", torch.float64),
        patch.object(Tensor, "float", Tensor.double),
    ):
        yield


class Held(Callback):
    """Leaves in the task how many bytes of parameters a rank holds, that with the most."""

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Gradients are gone by then, parameters are what they were."""
        held = sum(map(_bytes, pl_module.parameters()))
        most = torch.tensor(float(held), dtype=torch.float64)
        if dist.is_initialized():
            dist.all_reduce(most, dist.ReduceOp.MAX)
        pl_module.held = float(most)


def _bytes(parameter: Tensor) -> int:
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return 0 if local.is_meta else local.nbytes


class Cell(NamedTuple):
    """What was found: a difference and a share of one process's bytes, or a rejection."""

    apart: float = 0.0
    held: float = 0.0
    table: str = ""
    rejection: str = ""


def cell(row: str, column: str) -> Cell:
    """One rank's part."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    network, samples, task = ROWS[row]
    strategy = COLUMNS[column].strategy(ROWS[row])
    strategy.prints_layers = False
    made: list[Any] = []

    def make_task() -> Trained:
        made.append(task(network()))
        return made[-1]  # type: ignore[no-any-return]

    def make_data() -> Any:
        return tuple(DataLoader(samples(), BATCH) for _ in range(2))  # type: ignore[arg-type]

    options = {"accelerator": "cpu", "devices": COLUMNS[column].ranks, "callbacks": [Held()]}
    try:
        with in_float64():
            found = compare_in_rank(
                Comparison(make_task, make_data, strategy, options, STEPS, LIMIT, seed=0)
            )
    except onecurve.UserError as error:
        return Cell(rejection=str(error))
    if not found.rows:  # of another rank than the first
        return Cell()
    table = "" if found.equal else found.table()
    if column in BY_SCHEDULE and not strategy.parallelisms[0].runner.ran_by_schedule:
        table = f"its steps ran by gpipe\n{table}"
    apart = max(row.relative for row in found.rows)
    return Cell(apart, made[0].held / made[-1].held, table)


def chosen(names: Iterable[str], words: list[str]) -> list[str]:
    """Those that have one of the words in them; all, without words."""
    return [name for name in names if not words or any(word in name for word in words)]


def found_in(row: str, column: str) -> Cell:
    """A cell, measured in ranks that stay from one to the next."""
    ranks = COLUMNS[column].ranks
    try:
        return warm_ranks.run("families.cell", (row, column), processes=ranks)  # type: ignore[no-any-return]
    except onecurve.UserError as error:  # of one rank alone
        return Cell(rejection=str(error))
    except onecurve.RankFailed as error:
        return Cell(table=f"failed: {error}")


def main() -> int:
    """Print both tables, and below them each line of rejection and each table of differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=[], metavar="WORD", help="networks")
    parser.add_argument("--columns", nargs="+", default=[], metavar="WORD", help="strategies")
    asked = parser.parse_args()
    rows, columns = chosen(ROWS, asked.rows), chosen(COLUMNS, asked.columns)
    found: dict[tuple[str, str], Cell] = {}
    # Column by column, so that ranks need not be started again.
    for column, row in product(columns, rows):
        if column in BY_SCHEDULE and not ROWS[row].is_sequence:
            continue
        found[row, column] = made = found_in(row, column)
        print(f"{row}, {column}: {made}", file=sys.stderr, flush=True)
    print(_table(rows, columns, found, _shown))
    print("\nBytes of parameters on the rank with the most, by those of one process:\n")
    print(_table(rows, columns, found, lambda one: f"{one.held:.2f}" if one.held else "-"))
    wrong = {at: one.table or one.rejection for at, one in found.items()}
    for (row, column), what in wrong.items():
        if what:
            print(f"\n{row}, {column}:\n{what}")
    return 1 if any(wrong.values()) else 0


def _table(
    rows: list[str],
    columns: list[str],
    found: dict[tuple[str, str], Cell],
    shown: Callable[[Cell], str],
) -> str:
    lines = [["network", *columns], ["---"] * (len(columns) + 1)]
    for row in rows:
        cells = [found.get((row, column)) for column in columns]
        # What is called block by block runs by gpipe.
        lines.append([row, *("gpipe" if cell is None else shown(cell) for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(cell: Cell) -> str:
    if cell.rejection:
        return "rejected"
    return "wrong" if cell.table else f"{cell.apart:.1e}"


if __name__ == "__main__":
    sys.exit(main())
