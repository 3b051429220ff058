"""Classification: one label an image."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from onecurve.limits import Number
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from .from_config import built

Batch = tuple[Tensor, Tensor]


class Classification(LightningModule):
    """Trains a network with cross entropy and measures accuracy.

    It keeps the three rules that let every strategy train it: the steps reach the network only
    through `forward`, which is the composition of the network's layers; `loss` is the mean over the
    batch; the rest is an ordinary LightningModule.

    Args:
        network: Maps inputs (N, ...) to logits (N, num_classes). This and the next two may also be
            given as their configuration.
        optimizer: Called with the network's named parameters, returns the optimizer.
        scheduler: Called with the optimizer and ``total_steps``, ``monitor``, ``mode``; returns
            Lightning's scheduler configuration, or None.
        num_classes: Number of labels.
        monitor: Name of the metric by which runs are compared, for schedulers that wait for it.
        mode: "max" or "min": which way is better.
        label_smoothing: Share of the target spread evenly over all classes.
    """

    def __init__(
        self,
        network: nn.Module | dict[str, Any],
        optimizer: Callable[..., torch.optim.Optimizer] | dict[str, Any],
        scheduler: Callable[..., dict[str, Any] | None] | dict[str, Any],
        num_classes: int,
        monitor: str = "val/acc",
        mode: Literal["min", "max"] = "max",
        label_smoothing: Annotated[float, Number(least=0, most=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.network: nn.Module = built(network)
        self.build_optimizer = built(optimizer)
        self.build_scheduler = built(scheduler)
        self.monitor = monitor
        self.mode = mode
        self.label_smoothing = label_smoothing
        self.val_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        self.test_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (N, num_classes) of inputs (N, ...)."""
        logits: Tensor = self.network(inputs)
        return logits

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits (N, num_classes) and labels (N,)."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of one batch; a metric beside it would cost as much again as logging the loss."""
        inputs, targets = batch
        loss = self.loss(self(inputs), targets)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and accuracy over the whole validation set."""
        inputs, targets = batch
        outputs = self(inputs)
        self.val_acc.update(outputs, targets)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)
        self.log("val/acc", self.val_acc, prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and accuracy over the whole test set."""
        inputs, targets = batch
        outputs = self(inputs)
        self.test_acc.update(outputs, targets)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))
        self.log("test/acc", self.test_acc)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Probabilities (N, num_classes)."""
        probabilities: Tensor = self(batch[0]).softmax(dim=-1)
        return probabilities

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
