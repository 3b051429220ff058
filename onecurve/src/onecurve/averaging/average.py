"""The mean of the weights that a module had at several moments.

Averaging is linear, so each rank averages what it holds: whole tensors, its shards of them, or its
layers. Only a checkpoint brings them together, under their usual names.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..compat.of_torch import tree_map_only


class RunningAverage:
    """Sums up weights.

    Attributes:
        count: How many have been summed up.
        tensors: Their mean, by parameter name, for what this rank holds.
    """

    def __init__(self) -> None:
        self.count = 0
        self.tensors: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, module: LightningModule, share: float | None = None) -> None:
        """Take the weights that the module has now into the mean.

        Args:
            module: Whose weights.
            share: How much of the mean they become; None gives all moments the same.
        """
        self.count += 1
        share = 1 / self.count if share is None else share
        for name, value in held(module).items():
            if name in self.tensors:
                self.tensors[name].lerp_(value, share)
            else:
                self.tensors[name] = value.clone()

    @contextmanager
    def in_place(self, module: LightningModule) -> Iterator[None]:
        """Give the module the mean for a while; buffers stay."""
        self._swap(module)
        try:
            yield
        finally:
            self._swap(module)

    def gathered(self, trainer: Trainer) -> dict[str, Any]:
        """The whole mean as a checkpoint holds weights. All ranks call this."""
        with self.in_place(trainer.lightning_module):
            state = trainer.strategy.lightning_module_state_dict()
            # Of what is in place only for now.
            return tree_map_only(Tensor, torch.clone, dict(state))  # type: ignore[no-any-return]

    def restore(self, trainer: Trainer, gathered: dict[str, Any], count: int) -> None:
        """Take this rank's part of what `gathered` returned."""
        module = trainer.lightning_module
        now = {name: value.clone() for name, value in held(module).items()}
        trainer.strategy.load_model_state_dict({"state_dict": gathered})
        self.tensors = {name: value.clone() for name, value in held(module).items()}
        self.count = count
        with torch.no_grad():
            for name, value in held(module).items():
                value.copy_(now[name])

    @torch.no_grad()
    def _swap(self, module: LightningModule) -> None:
        for name, value in held(module).items():
            now = value.clone()
            value.copy_(self.tensors[name])
            self.tensors[name] = now


class Averaging(Callback):
    """What callbacks have in common that average what steps reach.

    Attributes:
        average: The average so far.
        validate: Whether the average is validated, once there is one, instead of the weights of
            training.
        is_saving: Whether the checkpoint that is being written is that of the average alone, to
            which no other average adds anything.
    """

    validate: bool = True
    is_saving: bool = False

    def __init__(self) -> None:
        self.average = RunningAverage()
        self._seen = -1
        self._validating: AbstractContextManager[None] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._seen = trainer.global_step

    def has_stepped(self, trainer: Trainer) -> bool:
        """Whether the batch that has just ended made an optimizer step."""
        before, self._seen = self._seen, trainer.global_step
        return self._seen != before

    def in_place(self, trainer: Trainer) -> AbstractContextManager[None]:
        """The average in place of the weights of training, for a while."""
        return self.average.in_place(trainer.lightning_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not where it is only tried whether validation runs.
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self.validate and self.average.count and fits:
            self._validating = self.in_place(trainer)
            self._validating.__enter__()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validating is not None:
            self._validating.__exit__(None, None, None)
            self._validating = None


def held(module: LightningModule) -> dict[str, Tensor]:
    """What this rank holds of the parameters; a change of these tensors changes the module."""
    names = {name for name, _ in module.named_parameters()}
    # Not the parameters themselves: between forward and backward pass those may be gathered.
    state = module.state_dict(keep_vars=True)
    return {
        name: value.to_local() if isinstance(value, DTensor) else value.detach()
        for name, value in state.items()
        if name in names and not value.is_meta
    }
