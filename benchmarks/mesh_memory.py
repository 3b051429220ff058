"""Bytes that a rank of each mesh holds, beside its share of what one process holds.

Parameters, gradients at the moment of the optimizer's step, and the optimizer's state of a small
transformer, on the rank that holds most.

    python benchmarks/mesh_memory.py

A cell is bytes of the rank x ranks that share them / bytes of one process: 1 is an even share. For
tensor parallelism that share is of what is cut; the rest is whole. Exit status 1 where an axis that
cuts everything is more than a tenth above it; a pipeline's stages are as even as its layers.
"""

import sys
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback
from small_transformer import BATCH, trained
from torch import Tensor
from torch.distributed.tensor import DTensor

import onecurve

KINDS = ("parameters", "gradients", "optimizer")
MESHES: tuple[dict[str, int], ...] = (
    {"replicate": 2},
    {"shard": 2},
    {"shard": 4},
    {"context": 2},
    {"shard": 2, "context": 2},
    {"pipeline": 2},
    {"pipeline": 2, "shard": 2},
    {"tensor": 2},
    {"tensor": 4},
    {"shard": 2, "tensor": 2},
    {"pipeline": 2, "tensor": 2},
)
EVEN = {"shard", "context"}
WIDTH = 64


class Held(Callback):
    """Counts at the optimizer's steps; the last one has all states."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """What is there now."""
        here = [parameter for parameter in module.parameters() if not parameter.is_meta]
        gradients = [parameter.grad for parameter in here if parameter.grad is not None]
        states = [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.ndim
        ]
        self.bytes = [sum(map(_bytes, tensors)) for tensors in (here, gradients, states)]


def _bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def held(name: str, sizes: dict[str, int]) -> list[int]:
    """By kind, on the rank that holds most."""
    counting = Held()
    trained(
        name,
        sizes,
        WIDTH,
        samples=2 * BATCH,
        max_epochs=1,
        limit_val_batches=0,
        callbacks=[counting],
    )
    most = torch.tensor(counting.bytes)
    if dist.is_initialized():
        dist.all_reduce(most, dist.ReduceOp.MAX)
    found: list[int] = most.tolist()
    return found


def main() -> bool:
    """Print the table; whether all that is cut evenly is held evenly."""
    single = held("single", {})
    print(f"{'':24}" + "".join(f"{kind:>12}" for kind in KINDS))
    good = True
    for sizes in MESHES:
        found = onecurve.launch(held, "mesh", sizes, devices=prod(sizes.values()))
        sharing = prod(size for axis, size in sizes.items() if axis != "replicate")
        ratios = [mine * sharing / whole for mine, whole in zip(found, single, strict=True)]
        good &= not sizes.keys() <= EVEN or max(ratios) <= 1.1
        name = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        print(f"{name:24}" + "".join(f"{ratio:12.3f}" for ratio in ratios), flush=True)
    return good


if __name__ == "__main__":
    sys.exit(not main())
