"""Your task: what to learn, and how to measure it."""

import torch.nn.functional as F
from torch import Tensor

from .task import Task

# The type of your batches. If a batch is not a pair of inputs and targets, add a method `prepare`
# that returns such a pair.
Batch = tuple[Tensor, Tensor]


class Mine(Task):
    """Regression, to start from.

    `Task` is a LightningModule with `training_step` and `configure_optimizers`: write your own here
    if you need others. Settings of a task besides its network and optimizer are arguments of its
    `__init__`, and lines in configs/task/mine.yaml.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch: outputs (N, 1) against targets (N, 1). Put yours here."""
        return F.mse_loss(outputs, targets)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Values logged here can be used as `monitor=`; log torchmetrics objects likewise."""
        outputs, targets = self.answer(batch)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """What to measure at the end, with the best weights."""
        outputs, targets = self.answer(batch)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """What predict.py writes: one column for each name."""
        return {"prediction": self.answer(batch)[0].squeeze(-1)}
