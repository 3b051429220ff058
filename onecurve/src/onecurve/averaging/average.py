"""A running average of a module's weights.

Averaging is linear, so each rank averages the tensors that it holds: full ones, shards, or its
layers. They are gathered only for a checkpoint, under their usual names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..checkpoint.lazy_tensors import model_state_here
from ..compat.of_torch import local_shard, tree_map_only
from ..strategies.callback_api import CallbackAPI
from ..strategies.fsdp.state import shard_like


class RunningAverage:
    """The average of weights over several steps.

    Attributes:
        count: The number of steps in the average.
        tensors: The average, by parameter name, of what this rank holds; float32 or better.
    """

    def __init__(self) -> None:
        self.count = 0
        self.tensors: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, module: LightningModule, share: float | None = None) -> None:
        """Add the current weights of a module to the average.

        Args:
            module: The module.
            share: The weight of the new ones in the average; None weighs all steps equally.
        """
        self.count += 1
        share = 1 / self.count if share is None else share
        for name, value in local_weights(module).items():
            if name in self.tensors:
                average = local_shard(self.tensors[name])
                average.lerp_(local_shard(value).to(average.dtype), share)
            else:
                self.tensors[name] = _copied(value, value)

    @contextmanager
    def in_place(self, module: LightningModule) -> Iterator[None]:
        """Put the average into the module within the context; buffers stay.

        `tensors` has only what a module of lower precision cannot hold, until then.
        """
        live: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, value in local_weights(module).items():
                live[name] = value.clone()
                local_shard(value).copy_(local_shard(self.tensors[name]))
                if value.dtype == self.tensors[name].dtype:
                    del self.tensors[name]  # it needs no memory twice
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in local_weights(module).items():
                    if name not in self.tensors:
                        self.tensors[name] = value.clone()
                    local_shard(value).copy_(local_shard(live.pop(name)))

    def gathered(self, trainer: Trainer) -> dict[str, Any]:
        """The full average, as weights in a checkpoint. All ranks call this."""
        with self.in_place(trainer.lightning_module):
            state = self.widened(trainer, trainer.strategy.lightning_module_state_dict())
            # Copies: the average is in the module only for now.
            return tree_map_only(Tensor, torch.clone, state)  # type: ignore[no-any-return]

    def widened(self, trainer: Trainer, state: dict[str, Any]) -> dict[str, Any]:
        """The state of a module that has the average `in_place`, in the average's precision."""
        strategy = cast(CallbackAPI, trainer.strategy)
        if not strategy.reduce_boolean_decision(bool(self.tensors), all=False):
            return dict(state)
        full = (
            self.tensors
            if strategy.keeps_shards
            else dict(strategy.iter_full_tensors(self.tensors))
        )
        # Tied parameters have several names.
        first: dict[Tensor, str] = {}
        named = trainer.lightning_module.named_parameters(remove_duplicate=False)
        names = {name: first.setdefault(value, name) for name, value in named}
        return {name: full.get(names.get(name, ""), value) for name, value in state.items()}

    def restore(self, module: LightningModule, gathered: dict[str, Any]) -> None:
        """Restore this rank's part of what `gathered` returned."""
        weights = local_weights(module)
        here = model_state_here(gathered, weights)
        self.tensors = {
            name: _copied(shard_like(here.get(name, value), value), value)
            for name, value in weights.items()
        }


class Averaging(Callback):
    """The base class of callbacks that average weights.

    Attributes:
        average: The average so far.
        is_saving: Whether the current checkpoint is of this average alone; then no other average
            adds itself to it.
    """

    is_saving: bool = False

    def __init__(self) -> None:
        self.average = RunningAverage()
        self._seen = -1
        # Of a checkpoint, until the module is sharded or split.
        self._restored: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the average of a resumed run."""
        self._seen = trainer.global_step
        if self._restored:
            self.average.restore(pl_module, self._restored)
            self._restored = None

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.average.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.average.count = state_dict["count"]

    def has_stepped(self, trainer: Trainer) -> bool:
        """Whether the batch that has just ended was followed by an optimizer step."""
        before, self._seen = self._seen, trainer.global_step
        return self._seen != before


def local_weights(module: LightningModule) -> dict[str, Tensor]:
    """The parameters, or their shards, on this rank; they share memory with the module's."""
    names = {name for name, _ in module.named_parameters()}
    # From the state dict: FSDP may have gathered the parameters for a forward pass.
    state = module.state_dict(keep_vars=True)
    return {
        name: value.detach() for name, value in state.items() if name in names and not value.is_meta
    }


def _copied(value: Tensor, like: Tensor) -> Tensor:
    """A copy where the like is, in float32 or better: 16 bits are too few for small shares."""
    is_float = like.is_floating_point()
    dtype = torch.promote_types(like.dtype, torch.float32) if is_float else like.dtype
    return value.to(like.device, dtype, copy=True)
