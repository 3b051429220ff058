"""Lays a task out on ranks, axis by axis, from the outermost inwards: each rank keeps its part."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ..compat.of_lightning import set_device_of
from ..compat.of_torch import apply_to_tensors
from .layers import find_layers
from .mesh.ranks import Ranks

if TYPE_CHECKING:
    from .parallelism import Parallelism


def lay_out(
    task: LightningModule,
    ranks: Ranks,
    parallelisms: Sequence["Parallelism"],
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


@dataclass
class Part:
    """A part of a task that the same ranks hold: all of it, or a stage."""

    root: nn.Module
    layers: dict[str, nn.Module]
    """In order, by the names that they have in the task."""
    plan: dict[str, str] = field(default_factory=dict)
    """What is sharded within layers, and how, by name."""
    is_here: bool = True
    """Whether this rank holds it."""


def tensors_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Parameters and buffers, each once, also where modules share it."""
    found = {
        id(tensor): tensor
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
    }
    return list(found.values())


def held_tensors(parts: Iterable[Part]) -> list[Tensor]:
    """Parameters and buffers of the layers of this rank's parts."""
    return tensors_of(layer for part in parts if part.is_here for layer in part.layers.values())


def tensors_beside(task: nn.Module, parts: Iterable[Part]) -> list[Tensor]:
    """Those that are in no layer of any part: every rank has them."""
    placed = set(map(id, tensors_of(layer for part in parts for layer in part.layers.values())))
    return [tensor for tensor in tensors_of([task]) if id(tensor) not in placed]


def move(
    module: nn.Module, device: torch.device, moves: Callable[[Tensor], bool] = lambda _: True
) -> None:
    """Put what has memory on a device.

    Args:
        module: A task.
        device: Where to.
        moves: Whether a parameter or buffer goes there.
    """

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device) if moves(tensor) and not tensor.is_meta else tensor

    apply_to_tensors(module, moved)
    set_device_of(module, device=device)
