"""Classification with cross entropy and accuracy."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

Batch = tuple[Tensor, Tensor]


class Classification(LightningModule):
    """Keeps the rules of the task contract, and nothing else."""

    def __init__(
        self,
        network: nn.Module | dict[str, Any],
        optimizer: Callable[..., torch.optim.Optimizer] | dict[str, Any],
        scheduler: Callable[..., Any] | dict[str, Any],
        num_classes: int,
        monitor: str = "val/acc",
        mode: Literal["min", "max"] = "max",
        example_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        # `load_from_checkpoint` hands over their configuration, a run the parts themselves.
        self.network: nn.Module = instantiate(network) if isinstance(network, dict) else network
        self.build_optimizer = instantiate(optimizer) if isinstance(optimizer, dict) else optimizer
        self.build_scheduler = instantiate(scheduler) if isinstance(scheduler, dict) else scheduler
        self.monitor = monitor
        self.mode = mode
        if example_shape is not None:
            self.example_input_array = torch.zeros(1).expand(*example_shape)
        self.val_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        self.test_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = self.loss(self(inputs), targets)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        inputs, targets = batch
        outputs = self(inputs)
        self.val_acc.update(outputs, targets)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)
        self.log("val/acc", self.val_acc, prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        inputs, targets = batch
        outputs = self(inputs)
        self.test_acc.update(outputs, targets)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))
        self.log("test/acc", self.test_acc)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        probabilities: Tensor = self(batch[0]).softmax(dim=-1)
        return probabilities

    def configure_optimizers(self) -> Any:
        optimizer = self.build_optimizer(self.network.parameters())
        scheduler = self.build_scheduler(
            optimizer,
            total_steps=self.trainer.estimated_stepping_batches,
            monitor=self.monitor,
            mode=self.mode,
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler} if scheduler else optimizer
