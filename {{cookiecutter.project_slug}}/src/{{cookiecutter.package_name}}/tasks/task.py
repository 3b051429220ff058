"""The base class of tasks: a network, its optimizer and schedule, and a training step."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired, TypedDict

import torch
from hydra.utils import instantiate
from lightning.pytorch import LightningModule
from torch import Tensor, nn


class Parts(TypedDict):
    """What a run passes to a task besides the task's own settings.

    The first three are objects, or their configurations, as in a checkpoint.
    """

    network: nn.Module | dict[str, Any]
    """Maps inputs (N, ...) to outputs (N, ...)."""
    optimizer: Callable[..., torch.optim.Optimizer] | dict[str, Any]
    """Called with the network's named parameters, returns the optimizer."""
    scheduler: Callable[..., dict[str, Any] | None] | dict[str, Any]
    """Called with the optimizer and ``total_steps``, ``monitor``, ``mode``; returns Lightning's
    scheduler configuration, or None."""
    monitor: NotRequired[str]
    """Name of the metric by which runs are compared, for schedulers that wait for it."""
    mode: NotRequired[Literal["min", "max"]]
    """Which way is better."""


def built(part: Any) -> Any:
    """A part, or what its configuration describes: `load_from_checkpoint` passes that."""
    return instantiate(part) if isinstance(part, Mapping) else part


class Task(LightningModule):
    """A LightningModule that every strategy can train, once it has a `loss`.

    Strategies use only four methods; the rest is an ordinary LightningModule:

    - `forward` is the only access to the network, and the composition of its layers.
    - `prepare` returns inputs and targets of a batch, and may draw random numbers.
    - `loss` is the mean over the samples, or over what `weight` counts.
    - `weight`, where that is not the number of samples, says how much counts in them.
    """

    def __init__(
        self,
        network: nn.Module | dict[str, Any],
        optimizer: Callable[..., torch.optim.Optimizer] | dict[str, Any],
        scheduler: Callable[..., dict[str, Any] | None] | dict[str, Any],
        monitor: str = "val/loss",
        mode: Literal["min", "max"] = "min",
    ) -> None:
        super().__init__()
        self.network: nn.Module = built(network)
        self.build_optimizer = built(optimizer)
        self.build_scheduler = built(scheduler)
        self.monitor = monitor
        self.mode = mode

    def prepare(self, batch: Any) -> tuple[Any, Any]:
        """The inputs of the network, a tensor or a tuple of tensors, and the targets."""
        inputs, targets = batch
        return inputs, targets

    def forward(self, *inputs: Tensor) -> Any:
        """The network's outputs (N, ...) of inputs (N, ...)."""
        return self.network(inputs if len(inputs) > 1 else inputs[0])

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The mean over the samples, or over what `weight` counts, as a scalar tensor."""
        raise NotImplementedError

    def answer(self, batch: Any) -> tuple[Any, Any]:
        """Outputs of the network for a batch, and its targets."""
        inputs, targets = self.prepare(batch)
        return self(*inputs) if isinstance(inputs, tuple) else self(inputs), targets

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch. A metric would cost as much as logging the loss."""
        loss = self.loss(*self.answer(batch))
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """The optimizer, and the scheduler if there is one."""
        optimizer = self.build_optimizer(self.network.named_parameters())
        scheduler = self.build_scheduler(
            optimizer,
            total_steps=self.trainer.estimated_stepping_batches,
            monitor=self.monitor,
            mode=self.mode,
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler} if scheduler else optimizer
