"""The promise in a table: no curve, metric or weight tells which strategy made it.

Every strategy and every pipeline schedule trains LeNet-5 on scikit-learn's digits and a small
transformer on made-up sequences, on the CPU, under settings that strategies are known to get wrong.
Each run is compared with that of `strategy=single`.

    python benchmarks/parity.py [COLUMN ...]

A cell is the largest relative difference of the per-step `train/loss` over 50 steps or more. Below
each table: the same for what validation logs, and for the weights at the end (the norm of the
difference over the norm). Exit status 1 if a cell is above its limit.

In float64, where rounding is some 1e-15 and more than the limit is an error on every machine. In
float32 Adam divides a gradient that is zero but for rounding by its own size, and what comes of it
is up to the kernels of a processor; so the columns of fewer bits are trained with SGD, which keeps
a small error small, and both networks are smooth.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from baked import column, folder_for_runs, train, weights

LIMIT = 1e-11
# Some hundred roundings of 6e-8, and some ten of 4e-3: sums are taken in other parts.
LIMITS_OF_FEWER_BITS = {"float32": 1e-5, "bf16": 3e-2}

TASKS = {
    "LeNet-5 on digits": ("model=lenet", "data=digits"),
    "transformer on sequences": (
        "model._target_=sequences.transformer",
        "data._target_=sequences.Sequences",
    ),
}
# 1,297 training samples in batches of 50: 25 whole ones, and one of 47.
BASE = (
    "data.batch_size=50",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=25",
    "optimizer=adam",
    "trainer.precision=64-true",
    "callbacks=[checkpoint]",
    "logger=csv",
)
COLUMNS = {
    "plain": (),
    "accumulate 2": ("trainer.accumulate_grad_batches=2", "trainer.max_epochs=4"),
    "clip 0.3": ("trainer.gradient_clip_val=0.3",),
    "AdamW": ("optimizer=adamw",),
    "SGD": ("optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0"),
    "momentum": ("optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0.9"),
    "uneven": ("trainer.limit_train_batches=1.0",),
    "frozen": ("+callbacks.freeze._target_=test_parity.Freeze",),
    "float32": ("trainer.precision=32-true", "optimizer=sgd", "optimizer.lr=0.05"),
    "bf16": ("trainer.precision=bf16-mixed", "optimizer=sgd", "optimizer.lr=0.05"),
}


def pipeline(schedule: str) -> tuple[str, ...]:
    """Two stages' ranks under a schedule."""
    return ("strategy=pipeline", "trainer.devices=2", f"strategy.schedule={schedule}")


ROWS = {
    "dp(2)": ("strategy=dp", "trainer.devices=2"),
    "ddp(2)": ("strategy=ddp", "trainer.devices=2"),
    "fsdp(2)": ("strategy=fsdp", "trainer.devices=2"),
    "gpipe(2)": pipeline("gpipe"),
    "1f1b(2)": pipeline("1f1b"),
    "looped_bfs(2)": pipeline("looped_bfs"),
    "interleaved_1f1b(2)": pipeline("interleaved_1f1b"),
    "interleaved_zero_bubble(2)": pipeline("interleaved_zero_bubble"),
    "zbv(2)": pipeline("zbv"),
    "1f1b(2) x replicas(2)": ("strategy=pipeline", "trainer.devices=4", "strategy.replicas=2"),
    "fsdp(4) as 2 x 2": ("strategy=fsdp", "trainer.devices=4", "strategy.replicas=2"),
}


class Cell(NamedTuple):
    """Differences of a run from that under `single`."""

    loss: float
    validation: float
    weights: float

    def holds(self, name: str) -> bool:
        """Whether all are within their limits."""
        if name in LIMITS_OF_FEWER_BITS:
            return self.loss <= LIMITS_OF_FEWER_BITS[name]
        return max(self) <= LIMIT


def compare(reference: Path, run: Path) -> Cell:
    """Read two runs."""
    validation = max(_largest(reference, run, name) for name in ("val/loss", "val/acc"))
    return Cell(_largest(reference, run, "train/loss"), validation, _weights(reference, run))


def _largest(reference: Path, run: Path, name: str) -> float:
    expected, found = column(reference, name), column(run, name)
    assert len(expected) == len(found) > 0, (name, len(expected), len(found))
    if name == "train/loss":
        assert len(expected) >= 50
    return max(abs(a - b) / abs(a) for a, b in zip(expected, found, strict=True))


def _weights(reference: Path, run: Path) -> float:
    expected, found = weights(reference), weights(run)
    assert list(expected) == list(found)
    flat = [
        torch.cat([v.flatten().double() for v in state.values()]) for state in (expected, found)
    ]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())


def main(columns: list[str]) -> int:
    """Run, print, and say whether the limits hold."""
    held = True
    with folder_for_runs():
        for task, overrides in TASKS.items():
            print(f"{task}\n{'':28}" + "".join(f"{name:>13}" for name in columns), flush=True)
            base = (*BASE, *overrides)
            references = {name: train(*base, *COLUMNS[name]) for name in columns}
            print(f"{'single':28}" + f"{'reference':>13}" * len(columns), flush=True)
            worst = Cell(0, 0, 0)
            for row, strategy in ROWS.items():
                print(f"{row:28}", end="", flush=True)
                for name in columns:
                    cell = compare(references[name], train(*base, *COLUMNS[name], *strategy))
                    held &= cell.holds(name)
                    mark = " " if cell.holds(name) else "!"
                    print(f"{cell.loss:12.1e}{mark}", end="", flush=True)
                    if name not in LIMITS_OF_FEWER_BITS:
                        worst = Cell(*map(max, worst, cell))
                print()
            print(
                f"largest in float64: loss {worst.loss:.1e}, validation {worst.validation:.1e}, "
                f"weights {worst.weights:.1e}\n",
                flush=True,
            )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(COLUMNS)))
