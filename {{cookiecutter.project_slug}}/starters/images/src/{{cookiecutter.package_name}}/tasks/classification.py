"""Classification: one label per image."""

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

from .task import Parts, Task

Batch = tuple[Tensor, Tensor]


class Classification(Task):
    """Trains a network with cross entropy and measures accuracy.

    Args:
        num_classes: Number of labels.
        label_smoothing: Share of the target spread evenly over all classes.
        example_shape: The shape of a batch, by which `strategy=pipeline` weighs its layers.
        parts: The network, which maps images (N, C, H, W) to logits (N, num_classes), and how it is
            optimized: see `Parts`.
    """

    def __init__(
        self,
        num_classes: int,
        label_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0,
        example_shape: Sequence[int] | None = None,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.label_smoothing = label_smoothing
        if example_shape is not None:
            self.example_input_array = torch.zeros(1).expand(*example_shape)
        self.val_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        self.test_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits (N, num_classes) and labels (N,)."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and accuracy over the whole validation set."""
        outputs, targets = self.answer(batch)
        self.val_acc.update(outputs, targets)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)
        self.log("val/acc", self.val_acc, prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and accuracy over the whole test set."""
        outputs, targets = self.answer(batch)
        self.test_acc.update(outputs, targets)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))
        self.log("test/acc", self.test_acc)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Probabilities (N, num_classes)."""
        probabilities: Tensor = self.answer(batch)[0].softmax(dim=-1)
        return probabilities
