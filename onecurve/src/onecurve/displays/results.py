"""Draws what a validation has shown."""

from typing import Any

from lightning.pytorch import Trainer

from ..figures import image_grid
from . import figures
from .images import as_arrays, class_names, pictures
from .predictions import Results


class Show:
    """Draws the results of one validation.

    Args:
        writer: Where to.
        results: What to draw.
        trainer: For the data module and the step.
    """

    def __init__(self, writer: Any, results: Results, trainer: Trainer) -> None:
        self.writer = writer
        self.results = results
        self.data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.step = trainer.global_step
        self.names = class_names(self.data, len(results.confusion))

    def confusion_matrix(self) -> None:
        """Truth against prediction."""
        figure = figures.confusion_matrix(self.results.confusion, self.names)
        self.writer.figure("confusion_matrix", figure, self.step)

    def precision_recall(self) -> None:
        """A curve for each class."""
        self.writer.precision_recall(self.results.curves, self.names, self.step)

    def predictions(self) -> None:
        """Truth against prediction for the samples of the largest loss, those first."""
        worst = self.results.worst
        images = pictures(worst.inputs, self.data) if worst else None
        if worst is None or images is None:
            return
        shares, answers = worst.predictions.max(dim=1)
        titles, colors = [], []
        for target, answer, share in zip(
            worst.targets.tolist(), answers.tolist(), shares.tolist(), strict=True
        ):
            right = target == answer
            titles.append(
                f"{self.names[target]} {share:.0%}"
                if right
                else f"{self.names[target]}, not {self.names[answer]} {share:.0%}"
            )
            colors.append("black" if right else "firebrick")
        figure = image_grid(as_arrays(images), titles, colors)
        self.writer.figure("predictions", figure, self.step)

    def embedding(self) -> None:
        """Features of some samples, for the projector."""
        first = self.results.first
        if first is not None:
            labels = [self.names[target] for target in first.targets.tolist()]
            images = pictures(first.inputs, self.data)
            self.writer.embedding(first.values, labels, images, self.step)
