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
from io import BytesIO
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import baked  # noqa: F401  # warm_ranks can be imported with it
import torch
import torch.distributed as dist
import warm_ranks
from lightning.pytorch import Callback, Trainer
from memory import local_bytes
from torch import Tensor
from torch.utils.data import DataLoader

import onecurve
from onecurve.parity.runs import Comparison, compare_in_rank

try:
    import transformers
    from family_networks import ROWS, Trained
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is missing: type .venv/bin/uv pip install transformers timm")

LIMIT = 1e-11
STEPS, BATCH = 6, 8


class Column(NamedTuple):
    """A strategy with its options, and its ranks."""

    strategy: Callable[..., Any]
    options: dict[str, Any]
    ranks: int = 2


STAGES = {"microbatches": 2}
COLUMNS = {
    "ddp": Column(onecurve.DDP, {}),
    "fsdp": Column(onecurve.FSDP, {}),
    "tensor": Column(onecurve.Tensor, {}),
    "pipeline gpipe": Column(onecurve.Pipeline, {"schedule": "gpipe", **STAGES}),
    "pipeline 1f1b": Column(onecurve.Pipeline, {"schedule": "1f1b", **STAGES}),
    "pipeline zbv": Column(onecurve.Pipeline, {"schedule": "zbv", **STAGES}),
    "shard x tensor": Column(onecurve.mesh, {"shard": 2, "tensor": 2}, 4),
    "pipeline x tensor": Column(
        onecurve.mesh, {"pipeline": 2, "tensor": 2, "schedule": "gpipe", **STAGES}, 4
    ),
}
BY_SCHEDULE = ("pipeline 1f1b", "pipeline zbv")


@contextmanager
def in_float64() -> Iterator[None]:
    """Let what asks for float32 get float64."""
    # PyTorch keeps a table of storages by type from the first file on.
    with BytesIO() as file:
        torch.save(torch.zeros(1), file)
        torch.load(BytesIO(file.getvalue()))
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
        held = float(sum(map(local_bytes, pl_module.parameters())))
        most = torch.tensor(held, dtype=torch.float64)
        if dist.is_initialized():
            dist.all_reduce(most, dist.ReduceOp.MAX)
        pl_module.held = float(most)


class Cell(NamedTuple):
    """What was found: a difference and a share of one process's bytes; or what went wrong."""

    apart: float = 0.0
    held: float = 0.0
    wrong: str = ""
    is_rejected: bool = False

    def shown(self) -> str:
        """In the first table."""
        if self.wrong:
            return "rejected" if self.is_rejected else "wrong"
        return f"{self.apart:.1e}"


def cell(row: str, column: str) -> Cell:
    """One rank's part."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    network, samples, task = ROWS[row]
    kind, settings, ranks = COLUMNS[column]
    strategy = kind(timeout_seconds=60, **settings)
    strategy.prints_layers = False
    made: list[Any] = []

    def make_task() -> Trained:
        made.append(task(network()))
        return made[-1]  # type: ignore[no-any-return]

    def make_data() -> Any:
        return tuple(DataLoader(samples(), BATCH) for _ in range(2))  # type: ignore[arg-type]

    options = {"accelerator": "cpu", "devices": ranks, "callbacks": [Held()]}
    try:
        with in_float64():
            found = compare_in_rank(
                Comparison(make_task, make_data, strategy, options, STEPS, LIMIT, seed=0)
            )
    except onecurve.UserError as error:
        return Cell(wrong=str(error), is_rejected=True)
    if not found.rows:  # of another rank than the first
        return Cell()
    table = "" if found.equal else found.table()
    if column in BY_SCHEDULE and not strategy.parallelisms[0].runner.ran_by_schedule:
        table = f"its steps ran by gpipe\n{table}"
    apart = max(row.relative for row in found.rows)
    return Cell(apart, made[0].held / made[-1].held, table)


def found_in(row: str, column: str) -> Cell:
    """A cell, measured in ranks that stay from one to the next."""
    ranks = COLUMNS[column].ranks
    try:
        return warm_ranks.run("families.cell", (row, column), processes=ranks)  # type: ignore[no-any-return]
    except onecurve.UserError as error:  # of one rank alone
        return Cell(wrong=str(error), is_rejected=True)
    except onecurve.RankFailed as error:
        return Cell(wrong=f"failed: {error}")


def main() -> int:
    """Print both tables, and below them each line of rejection and each table of differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=[""], metavar="WORD", help="networks")
    parser.add_argument("--columns", nargs="+", default=[""], metavar="WORD", help="strategies")
    asked = parser.parse_args()
    rows = [name for name in ROWS if any(word in name for word in asked.rows)]
    columns = [name for name in COLUMNS if any(word in name for word in asked.columns)]
    found: dict[tuple[str, str], Cell] = {}
    # Column by column, so that ranks need not be started again.
    for column, row in product(columns, rows):
        if column in BY_SCHEDULE and not ROWS[row].is_sequence:
            continue
        found[row, column] = made = found_in(row, column)
        print(f"{row}, {column}: {made}", file=sys.stderr, flush=True)

    def print_table(shown: Callable[[Cell], str]) -> None:
        print_line("network", columns)
        print_line("---", ["---"] * len(columns))
        for row in rows:
            # What is called block by block runs by gpipe.
            cells = [found.get((row, column)) for column in columns]
            print_line(row, ("gpipe" if each is None else shown(each) for each in cells))

    print_table(Cell.shown)
    print("\nBytes of parameters on the rank with the most, by those of one process:\n")
    print_table(lambda each: f"{each.held:.2f}" if each.held else "-")
    wrong = {at: each.wrong for at, each in found.items() if each.wrong}
    for (row, column), what in wrong.items():
        print(f"\n{row}, {column}:\n{what}")
    return 1 if wrong else 0


def print_line(first: str, cells: Iterable[str]) -> None:
    """Of a table in Markdown."""
    print(f"| {' | '.join([first, *cells])} |")


if __name__ == "__main__":
    sys.exit(main())
