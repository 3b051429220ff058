"""Every mesh of up to eight ranks: whether it trains as one process does.

A small transformer in processes of this machine, on every mesh whose axes have 2, 4 or 8 ranks and
of which at most three are used, and under the strategies that are points of it.

    python benchmarks/meshes.py [WORD ...]

A cell is the largest relative difference that `onecurve.parity` finds beside a plain Trainer in
float64: of losses, gradient norms, the validation's loss, weights, and a resume in the middle; over
twelve steps with AdamW, clipping, and an uneven last batch of one sample. With words, such as
"context 2", only meshes in whose names they all are. Exit status 1 if a cell is above its limit.
"""

import sys
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import torch
from baked import print_head, print_row
from gpu_check.entries import STRATEGIES
from gpu_check.tasks import Size, Task, transformer
from torch.utils.data import DataLoader, TensorDataset

import onecurve

LIMIT = 1e-11
AXES = ("replicate", "pipeline", "shard", "context", "tensor")
PRESETS = ("ddp", "fsdp", "pipeline", "tensor")
# Widths, heads, blocks and positions are divisible by up to eight ranks: with embedding, norm and
# head there are eight layers. There are more positions than samples, as a pipeline cannot tell
# which is which where they are as many.
SIZE = Size(vocabulary=32, length=24, width=16, depth=5, heads=8, batch=16)
# Five whole batches, and one of a single sample for up to eight ranks.
SAMPLES = 81
OPTIONS = {"accelerator": "cpu", "gradient_clip_val": 0.3}


class LanguageModel(Task):
    """Says the next token."""

    def __init__(self) -> None:
        super().__init__(transformer(SIZE).network, lr=0.003)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        tokens, following = batch
        self.log("val/loss", self.loss(self(tokens), following), batch_size=len(tokens))


def sequences(number: int) -> DataLoader[Any]:
    """Made-up ones, the same at every call."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(SIZE.vocabulary, (number, SIZE.length + 1), generator=drawn)
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=SIZE.batch)


def data() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """For training and validation."""
    return sequences(SAMPLES), sequences(SIZE.batch + 1)


def meshes() -> Iterator[tuple[str, Any, int]]:
    """Names, strategies and ranks, the fewest first; a preset has its ranks under its own name."""
    for preset, ranks in product(PRESETS, (2, 4)):
        yield f"strategy={preset} {ranks}", STRATEGIES[preset](), ranks
    for sizes in sorted(product((1, 2, 4, 8), repeat=len(AXES)), key=prod):
        mesh = {axis: size for axis, size in zip(AXES, sizes, strict=True) if size > 1}
        if 1 < prod(sizes) <= 8 and len(mesh) <= 3:
            name = " x ".join(f"{axis} {size}" for axis, size in mesh.items())
            yield name, onecurve.mesh(**{"shard": 1, **mesh}), prod(sizes)


def main(*words: str) -> int:
    """Each mesh in processes of its own, so that one that fails ends no other."""
    status = 0
    print_head("mesh", "float64")
    for name, strategy, ranks in meshes():
        if not all(word in name for word in words):
            continue
        strategy.prints_layers = False
        try:
            found = onecurve.parity(
                LanguageModel, data, strategy=strategy, devices=ranks, steps=12, tolerance=LIMIT,
                **OPTIONS,
            )  # fmt: skip
        except (onecurve.RankFailed, onecurve.UserError) as error:
            status = 1
            print_row(name, f"failed: {error}")
            continue
        print_row(name, f"{max(row.relative for row in found.rows):.1e}")
        if not found.equal:
            status = 1
            print(found.table(), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
