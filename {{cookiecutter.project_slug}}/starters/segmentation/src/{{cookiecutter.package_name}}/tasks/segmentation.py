"""Segmentation: one label per pixel."""

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from onecurve.app.displays.images import as_arrays, pictures
from onecurve.figures import new_figure
from torch import Tensor
from torchmetrics.classification import MulticlassJaccardIndex

from .task import Parts, Task

Batch = tuple[Tensor, Tensor]
SHOWN = 8


class Segmentation(Task):
    """Trains a network with cross entropy, and measures the mean over the classes of their IoU.

    Args:
        num_classes: Number of labels; label 0 is the background.
        parts: The network, which maps images (N, C, H, W) to logits (N, num_classes, H, W), and how
            it is optimized: see `Parts`.
    """

    def __init__(self, num_classes: int, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.grey = 255 // (num_classes - 1)
        self.val_iou = MulticlassJaccardIndex(num_classes, validate_args=False)
        self.test_iou = MulticlassJaccardIndex(num_classes, validate_args=False)
        # Of who sees background everywhere.
        self.test_background = MulticlassJaccardIndex(num_classes, validate_args=False)
        self.shown: tuple[Tensor, ...] = ()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits (N, num_classes, H, W) and labels (N, H, W)."""
        return F.cross_entropy(outputs, targets)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and IoU over the whole validation set."""
        outputs, targets = self.answer(batch)
        labels = outputs.argmax(dim=1)
        self.val_iou.update(labels, targets)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)
        self.log("val/iou", self.val_iou, prog_bar=True)
        if batch_idx == 0:
            self.shown = tuple(value[:SHOWN].cpu() for value in (batch[0], targets, labels))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and IoU over the whole test set."""
        outputs, targets = self.answer(batch)
        self.test_iou.update(outputs.argmax(dim=1), targets)
        self.test_background.update(targets.new_zeros(targets.shape), targets)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))
        self.log("test/iou", self.test_iou)
        self.log("test/iou_of_background", self.test_background)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Masks as pictures, uint8 (N, 1, H, W): label k has the grey value `k * self.grey`."""
        labels: Tensor = self.answer(batch)[0].argmax(dim=1, keepdim=True)
        return labels.mul(self.grey).to(torch.uint8)

    def displays(self) -> dict[str, Figure]:
        """Some validation images; below each its true and its predicted labels."""
        inputs, truth, found = self.shown
        images = pictures(inputs, self.trainer.datamodule)  # type: ignore[attr-defined]
        assert images is not None
        figure = new_figure(1.5 * len(inputs), 4.5)
        axes = figure.subplots(3, len(inputs), squeeze=False)
        for column, image in enumerate(as_arrays(images)):
            axes[0, column].imshow(image)
            for row, masks in ((1, truth), (2, found)):
                axes[row, column].imshow(masks[column].numpy(), cmap="tab20", vmin=0, vmax=20)
        for place in axes.flat:
            place.set_axis_off()
        return {"masks": figure}
