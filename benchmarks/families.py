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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import baked  # before warm_ranks, which lies where it looks
import torch
import torch.distributed as dist
import warm_ranks
from held import local_bytes
from lightning.pytorch import Callback, Trainer
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
BYTES = "Bytes of parameters on the rank with the most, by those of one process"
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
    """A difference, and a share of one process's bytes; or what went wrong."""

    difference: str
    held: str = "-"
    wrong: str = ""


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
    with in_float64():
        found = compare_in_rank(
            Comparison(make_task, make_data, strategy, options, STEPS, LIMIT, seed=0)
        )
    if not found.rows:  # of another rank than the first
        return Cell("")
    table = "" if found.equal else found.table()
    if column in BY_SCHEDULE and not strategy.parallelisms[0].runner.ran_by_schedule:
        table = f"its steps ran by gpipe\n{table}"
    difference = "wrong" if table else f"{max(row.relative for row in found.rows):.1e}"
    return Cell(difference, f"{made[0].held / made[-1].held:.2f}", table)


def measured(row: str, column: str) -> Cell:
    """A cell, measured in ranks that stay from one to the next."""
    if column in BY_SCHEDULE and not ROWS[row].is_sequence:
        return Cell("gpipe", "gpipe")  # as what is called block by block runs
    try:
        found = warm_ranks.run(cell, row, column, processes=COLUMNS[column].ranks)
    except onecurve.UserError as error:
        found = Cell("rejected", wrong=str(error))
    except onecurve.RankFailed as error:
        found = Cell("wrong", wrong=f"failed: {error}")
    print(f"{row}, {column}: {found}", file=sys.stderr, flush=True)
    return found  # type: ignore[no-any-return]


def main() -> int:
    """Print both tables, and below them each line of rejection and each table of differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=[""], metavar="WORD", help="networks")
    parser.add_argument("--columns", nargs="+", default=[""], metavar="WORD", help="strategies")
    asked = parser.parse_args()
    rows = [name for name in ROWS if any(word in name for word in asked.rows)]
    columns = [name for name in COLUMNS if any(word in name for word in asked.columns)]
    # Column by column, so that ranks need not be started again.
    found = {at: measured(*reversed(at)) for at in product(columns, rows)}
    for title, field in (("", "difference"), (f"\n{BYTES}:\n", "held")):
        print(title)
        baked.print_head("network", *columns)
        for row in rows:
            baked.print_row(row, *(getattr(found[column, row], field) for column in columns))
    wrong = {at: cell.wrong for at, cell in found.items() if cell.wrong}
    for (column, row), what in wrong.items():
        print(f"\n{row}, {column}:\n{what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
