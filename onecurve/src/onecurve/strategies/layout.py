"""Distributes a task over the ranks, axis by axis from the outermost to the innermost."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ..compat.of_lightning import set_device_of
from ..compat.of_torch import apply_to_tensors
from ..errors import UserError
from .fsdp.sharding import is_sharded
from .full_parameters import stay_usable
from .layers import find_layers
from .mesh.sizes import Sizes

if TYPE_CHECKING:
    from .parallelism import Applied, Parallelism, Setting


LAID_OUT = "_laid_out_over"
"""An attribute of a task that ranks share: the sizes of their mesh."""


def lay_out(
    task: LightningModule,
    axes: Sequence["Parallelism"],
    setting: "Setting",
    apply_ac_and_compile: Callable[[Iterable[nn.Module] | None], None],
) -> list["Applied"]:
    """Reduce a task to this rank's part, in place; its weights become those of the first rank.

    Activation checkpointing and torch.compile are applied to the layers that the rank holds, before
    parameters are sharded; None stands for all layers of the task. All ranks call this.
    """
    if is_sharded(task):  # by the same axes of another Trainer: see `reject_other_shards`
        return [axis.apply(task, [], setting) for axis in axes]
    ranks = setting.ranks
    parts = [Part(task, find_layers(task) or {"": task})]
    for axis in axes:
        parts = axis.plan(task, parts, setting)
    # Start ranks from the same weights, as DistributedDataParallel does.
    ranks.copy_first(*tensors_of(_layers_of(part for part in parts if part.is_here)))
    placed = set(tensors_of(_layers_of(parts)))
    others = [each for each in tensors_of([task]) if each not in placed]
    ranks.copy_first(*others, group=dist.group.WORLD)
    applied = []
    for axis in axes:
        if not axis.follows_compile:
            applied.append(axis.apply(task, parts, setting))
            parts = [part for part in parts if part.is_here]
    is_full = any(part.root is task for part in parts)
    apply_ac_and_compile(None if is_full else dict.fromkeys(_layers_of(parts)))
    applied += [axis.apply(task, parts, setting) for axis in axes if axis.follows_compile]
    vars(task)[LAID_OUT] = ranks.sizes
    stay_usable(task, setting.name)
    return applied


def is_laid_out(task: LightningModule) -> bool:
    """Whether ranks share a task."""
    return LAID_OUT in vars(task)


def reject_other_shards(
    task: LightningModule, strategy: str, sizes: Sizes, has_applied: bool
) -> None:
    """Reject a task that another Trainer's strategy has sharded over a mesh of other sizes.

    The stages of a pipeline are known to the strategy alone that has made them.
    """
    divides = sizes.pipeline > 1 and not has_applied
    if is_sharded(task) and (divides or vars(task).get(LAID_OUT, sizes) != sizes):
        raise UserError(
            f"strategy={strategy}: {type(task).__name__} is still sharded by the strategy of "
            "another Trainer; make a new one and load its checkpoint, or use the same strategy"
        )


@dataclass
class Part:
    """A part of a task that one group of ranks holds: the full task, or a pipeline stage."""

    root: nn.Module
    layers: dict[str, nn.Module]
    """The layers in order, by their names in the task."""
    plan: dict[str, str] = field(default_factory=dict)
    """Tensor-parallel styles of modules, by name."""
    is_here: bool = True
    """Whether this rank holds the part."""


def _layers_of(parts: Iterable[Part]) -> Iterable[nn.Module]:
    return (layer for part in parts for layer in part.layers.values())


def tensors_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Parameters and buffers of the modules; shared ones appear once."""
    tensors = {
        id(tensor): tensor
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
    }
    return list(tensors.values())


def move(
    module: nn.Module, device: torch.device, moves: Callable[[Tensor], bool] = lambda _: True
) -> None:
    """Move the parameters and buffers of a task that `moves` selects; none on the meta device."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device) if moves(tensor) and not tensor.is_meta else tensor

    apply_to_tensors(module, moved)
    set_device_of(module, device=device)
