"""Several labels per image."""

from typing import Any, Unpack

import torch.nn.functional as F
from matplotlib.figure import Figure
from onecurve.app.displays.images import as_arrays, pictures
from onecurve.figures import image_grid
from torch import Tensor
from torchmetrics.classification import MultilabelAUROC

from .task import Parts, Task

Batch = tuple[Tensor, Tensor]
SHOWN = 16


class MultiLabel(Task):
    """Trains a network with a binary cross entropy for each label, and measures the mean AUROC.

    A network with the same output for every image has an AUROC of 0.5.

    Args:
        num_classes: Number of labels.
        parts: The network, which maps images (N, C, H, W) to logits (N, num_classes), and how it is
            optimized: see `Parts`.
    """

    def __init__(self, num_classes: int, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.val_auroc = MultilabelAUROC(num_classes, validate_args=False)
        self.test_auroc = MultilabelAUROC(num_classes, validate_args=False)
        self.shown: tuple[Tensor, ...] = ()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross entropy of logits and targets, both (N, num_classes)."""
        return F.binary_cross_entropy_with_logits(outputs, targets)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and AUROC over the whole validation set."""
        outputs, targets = self.answer(batch)
        self.val_auroc.update(outputs, targets.long())
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)
        self.log("val/auroc", self.val_auroc, prog_bar=True)
        if batch_idx == 0:
            self.shown = tuple(value[:SHOWN].cpu() for value in (batch[0], targets, outputs))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and AUROC over the whole test set."""
        outputs, targets = self.answer(batch)
        self.test_auroc.update(outputs, targets.long())
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))
        self.log("test/auroc", self.test_auroc)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Probability of each label (N, num_classes)."""
        probabilities: Tensor = self.answer(batch)[0].sigmoid()
        return probabilities

    def displays(self) -> dict[str, Figure]:
        """Some validation images with the predicted labels; red if the true labels differ."""
        inputs, truth, found = self.shown
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        images = pictures(inputs, data)
        assert images is not None
        names = [[data.class_names[n] for n in (row > 0).nonzero()] for row in found]
        right = ((truth > 0) == (found > 0)).all(dim=1).tolist()
        colors = ["black" if is_right else "firebrick" for is_right in right]
        titles = [" ".join(row) or "none" for row in names]
        return {"labels": image_grid(as_arrays(images), titles, colors)}
