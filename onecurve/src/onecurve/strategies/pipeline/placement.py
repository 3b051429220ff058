"""Which rank holds what, the owner of every parameter by name, and what passes between stages."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import UserError
from ..sequences import WholeSequences
from .partition import Partition
from .remote_parameters import RemoteParameter
from .shapes import Flags, LayerShapes
from .stage import StageModule, Tensors


class Placement:
    """A partition applied to a network."""

    def __init__(
        self,
        module: nn.Module,
        layers: dict[str, nn.Module],
        calls: dict[str, nn.Module],
        partition: Partition,
        rank: int,
    ) -> None:
        self.module = module
        self.layers = layers
        self.calls = calls
        self.partition = partition
        self.rank = rank
        names = list(layers)
        stage_of = {
            names[layer]: stage for stage, held in enumerate(partition.ranges) for layer in held
        }
        _check_shared_tensors(layers, stage_of)
        # A tensor has a name for each place where it is used, or kept.
        self._rank_of = {name: partition.owner[stage] for name, stage in stage_of.items()}
        owner_of = {
            id(held): self._rank_of[name]
            for name, layer in layers.items()
            for held in (*layer.modules(), *layer.parameters(), *layer.buffers())
        }
        named = (module.named_modules, module.named_parameters, module.named_buffers)
        self._owner = {
            name: owner_of[id(held)]
            for names in named
            for name, held in names(remove_duplicate=False)
            if id(held) in owner_of
        }

    def first_layer(self, stage: int) -> int:
        """Index of a stage's first layer; for their number, that of the layers."""
        return sum(len(held) for held in self.partition.ranges[:stage])

    def layers_of(self, stage: int) -> dict[str, nn.Module]:
        """A stage's layers by name."""
        names = list(self.layers)
        return {names[layer]: self.layers[names[layer]] for layer in self.partition.ranges[stage]}

    def take_part(self, context: Callable[[], AbstractContextManager[Any]]) -> dict[int, nn.Module]:
        """Free the memory of other ranks' layers, and make a module of each stage held here.

        Every module and parameter keeps its name and place, so that `configure_optimizers` and
        checkpoints know no difference.
        """
        others = [self.layers[name] for name, rank in self._rank_of.items() if rank != self.rank]
        _to_meta(self.module, others)
        calls = list(self.calls.values())
        return {
            stage: StageModule([calls[layer] for layer in held], context)
            for stage, held in enumerate(self.partition.ranges)
            if self.partition.owner[stage] == self.rank
        }

    def is_placed(self, name: str) -> bool:
        """Whether a parameter or buffer is in a layer; else every rank has it."""
        return any(at in self._owner for at in _places(name))

    def owner(self, name: str) -> int:
        """The rank that holds a parameter or buffer; rank 0 for what is in no layer."""
        return next((self._owner[at] for at in _places(name) if at in self._owner), 0)

    def holds(self, name: str) -> bool:
        """Whether this rank holds it: its own layers', and what is in no layer."""
        return not self.is_placed(name) or self.owner(name) == self.rank


class Stages(NamedTuple):
    """This rank's stages, whose parameters are sharded by now, and what passes between all."""

    placement: Placement
    modules: dict[int, nn.Module]
    """By the index of the stage."""
    shapes: LayerShapes
    sequences: WholeSequences
    """What is given of each sequence."""
    group: dist.ProcessGroup
    """The ranks of this pipeline."""
    device: torch.device
    """Where this rank computes."""

    @property
    def owner(self) -> list[int]:
        """For each stage of the pipeline, its rank in the group."""
        return self.placement.partition.owner

    def boundary(self, microbatch: Tensors, stage: int) -> Tensors:
        """What enters a stage, on the meta device; for the number of stages, what leaves."""
        training = torch.is_grad_enabled()
        with self.sequences.outside():
            boundaries = self.shapes.boundaries(microbatch, training, self.trained())
        return boundaries[self.placement.first_layer(stage)]

    def trained(self) -> Flags:
        """Which parameters are trained: a callback may freeze some, or a GAN toggle them."""
        layers = self.placement.layers.values()
        return tuple(p.requires_grad for layer in layers for p in layer.parameters())

    def parameters(self) -> list[Tensor]:
        """Those of this rank."""
        return [p for module in self.modules.values() for p in module.parameters()]

    def buffers(self) -> dict[str, Tensor]:
        """Those of this rank, by name."""
        return {
            f"{name}.{path}": buffer
            for name, layer in self.placement.layers.items()
            for path, buffer in layer.named_buffers()
            if not buffer.is_meta
        }


def _check_shared_tensors(layers: dict[str, nn.Module], stage_of: dict[str, int]) -> None:
    """Reject a parameter or buffer that layers on different stages use.

    A layer without any may be used on several.
    """
    user: dict[int, str] = {}
    for name, layer in layers.items():
        for tensor in (*layer.parameters(), *layer.buffers()):
            other = user.setdefault(id(tensor), name)
            if stage_of[other] != stage_of[name]:
                what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                raise UserError(
                    f"strategy=pipeline: layers {other} and {name} share a {what}, but are on "
                    f"stages {stage_of[other]} and {stage_of[name]}; give strategy.balance=[...] "
                    "that keeps them together, untie them, or use strategy=fsdp"
                )


def _to_meta(module: nn.Module, layers: list[nn.Module]) -> None:
    """Free the memory of layers; what is used, or kept, in several places stays one tensor."""
    empty: dict[Tensor, Tensor] = {}
    for layer in layers:
        for parameter in layer.parameters():
            meta = parameter.detach().to("meta")
            empty[parameter] = RemoteParameter(meta, parameter.requires_grad)
        for buffer in layer.buffers():
            empty[buffer] = buffer.to("meta")
    for part in {*module.modules(), *(part for layer in layers for part in layer.modules())}:
        for names in (part.named_parameters, part.named_buffers):
            for name, tensor in list(names(recurse=False, remove_duplicate=False)):
                if tensor in empty:
                    setattr(part, name, empty[tensor])


def _places(name: str) -> list[str]:
    """``a.b.c`` gives ``a.b.c``, ``a.b``, ``a``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
