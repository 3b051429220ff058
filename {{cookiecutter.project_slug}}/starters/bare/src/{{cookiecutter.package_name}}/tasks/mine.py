"""Your task: what is learned, and how that is measured."""

import torch.nn.functional as F
from torch import Tensor

from .task import Task

# What a batch of your data is. Where it is no pair of inputs and targets, add a method `prepare`
# that makes one of it.
Batch = tuple[Tensor, Tensor]


class Mine(Task):
    """Regression, to begin with.

    `Task` is a LightningModule with `training_step` and `configure_optimizers`: write your own here
    where you need others. What a task takes beside its network and optimizer is an argument of its
    `__init__`, and a line in configs/task/mine.yaml.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch: outputs (N, 1) against targets (N, 1). Put yours here."""
        return F.mse_loss(outputs, targets)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """What is logged here can be `monitor=`ed; metrics of torchmetrics are logged likewise."""
        outputs, targets = self.answer(batch)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """What is measured at the end, with the best weights."""
        outputs, targets = self.answer(batch)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """What predict.py writes: a column for each name."""
        return {"prediction": self.answer(batch)[0].squeeze(-1)}
