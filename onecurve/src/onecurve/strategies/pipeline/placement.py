"""Which rank holds what: this rank's stages, and the owner of every parameter by name."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from ...errors import UserError
from .elsewhere import Elsewhere
from .partition import Partition
from .stage import StageModule


class Placement:
    """A partition applied to a network.

    Args:
        module: The task.
        layers: All its layers, in order and by name.
        calls: What stages call for each of them.
        partition: Which of them make a stage, and which rank holds it.
        rank: This rank's coordinate in the pipeline.

    Raises:
        UserError: If a parameter or buffer is shared by two stages.
    """

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

    @property
    def num_stages(self) -> int:
        """Stages of all ranks."""
        return len(self.partition.ranges)

    @property
    def last_rank(self) -> int:
        """The rank with the last stage."""
        return self.partition.owner[-1]

    def first_layer(self, stage: int) -> int:
        """Index of a stage's first layer; for `num_stages`, the number of layers."""
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


def _check_shared_tensors(layers: dict[str, nn.Module], stage_of: dict[str, int]) -> None:
    """Refuse a parameter or buffer that layers on different stages use.

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
            empty[parameter] = Elsewhere(parameter.detach().to("meta"), parameter.requires_grad)
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
