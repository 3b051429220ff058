"""Lays a task out on ranks: each keeps its part, axis by axis, from the outermost inwards."""

from collections.abc import Callable, Iterable, Sequence

import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import nn

from .layers import find_layers
from .mesh.ranks import Ranks
from .parallelism import Parallelism
from .parts import Part, held_tensors, tensors_beside


def lay_out(
    task: LightningModule,
    ranks: Ranks,
    parallelisms: Sequence[Parallelism],
    make_layers: Callable[[Iterable[nn.Module] | None], None],
) -> None:
    """Keep this rank's part of a task, in place. All ranks call this.

    Args:
        task: The same on all ranks, but for its weights, which become those of the first.
        ranks: Of the run.
        parallelisms: What is done along the axes.
        make_layers: Lets layers compute again in a backward pass, and compiles them; None stands
            for the whole task's.
    """
    parts = [Part(task, find_layers(task) or {"": task})]
    for parallelism in parallelisms:
        parts = parallelism.plan(task, parts)
    # Start ranks from the same weights, as DistributedDataParallel does.
    ranks.copy_first(*held_tensors(parts))
    ranks.copy_first(*tensors_beside(task, parts), group=dist.group.WORLD)
    for parallelism in parallelisms:
        parts = parallelism.apply(task, parts)
    is_full = any(part.root is task for part in parts)
    layers = [layer for part in parts for layer in part.layers.values()]
    make_layers(None if is_full else dict.fromkeys(layers))
    for parallelism in parallelisms:
        parallelism.shard(task, parts)
