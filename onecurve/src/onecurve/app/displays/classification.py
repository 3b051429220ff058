"""Displays of classification: what a network predicts in a validation, counted and drawn."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from matplotlib.figure import Figure
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassPrecisionRecallCurve
from torchmetrics.utilities.plot import plot_confusion_matrix

from ...figures import image_grid, new_figure
from ...optim.steps import steps_done
from .images import as_arrays, class_names, labelled, pictures

THRESHOLDS = 101
MOST_NUMBERS = 20  # classes up to which a confusion matrix shows its counts


class Samples(NamedTuple):
    """Some samples on the CPU, with labels (N,), losses (N,) and probabilities (N, C)."""

    inputs: Tensor
    targets: Tensor
    losses: Tensor
    predictions: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Samples"]) -> "Samples":
        return cls(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def chosen(self, order: Tensor) -> "Samples":
        return Samples(*(values[order].cpu() for values in self))


class Results(NamedTuple):
    """The predictions of all ranks, on the CPU.

    Counts are (C, C) by truth and prediction; of curves, (T, C, 2, 2) by threshold, class, truth
    and prediction.
    """

    confusion: Tensor
    curves: Tensor
    worst: Samples | None


class Collector:
    """Collects the predictions of a classification task in a validation, by a hook.

    Under every strategy a step calls the task's `forward`, whose outputs are the predictions. Kept
    are so many samples of the largest loss (`worst`).
    """

    def __init__(self, task: LightningModule, worst: int) -> None:
        self.worst_count = worst
        # The confusion matrix and the curves, once the number of classes is known.
        self.counts: list[Any] = []
        self.worst: Samples | None = None
        self._outputs: Tensor | None = None
        self._hook = task.register_forward_hook(self._on_forward)

    def close(self) -> None:
        self._hook.remove()

    def take(self, batch: Any, strategy: Any) -> bool:
        """Count a batch after its step, if it has labels (N,) and outputs (N, C), on all ranks."""
        outputs, self._outputs = self._outputs, None
        pair = labelled(batch)
        if outputs is None or outputs.ndim != 2 or not pair or pair[1].shape != outputs.shape[:1]:
            return False
        inputs, targets = pair
        outputs = outputs.float()
        probabilities = outputs.softmax(dim=1)
        self.counts = self.counts or _counts(outputs.shape[1], outputs.device)
        for each in self.counts:
            each.update(probabilities, targets)
        if self.worst_count:
            losses = F.cross_entropy(outputs, targets, reduction="none")
            worst = losses.topk(min(self.worst_count, len(losses))).indices
            new = Samples(inputs, targets, losses, probabilities).chosen(worst)
            self.worst = _worst_of([self.worst, new], self.worst_count)
        return True

    def of_all_ranks(self, strategy: Any) -> Results | None:
        """Gather the predictions of all ranks; None if there are none. All ranks call this."""
        if not self.counts:
            return None
        worst = _worst_of(strategy.of_all_samples(self.worst), self.worst_count)
        confusion, curves = (
            strategy.reduce(each.confmat.clone(), reduce_op="sum").cpu() for each in self.counts
        )
        return Results(confusion, curves, worst)

    def _on_forward(self, task: nn.Module, inputs: Any, outputs: Any) -> None:
        # The first call: Lightning passes the result of the step through DDP's forward, too.
        if self._outputs is None and isinstance(outputs, Tensor):
            self._outputs = outputs


def _counts(classes: int, device: torch.device) -> list[Any]:
    curves = MulticlassPrecisionRecallCurve(classes, thresholds=THRESHOLDS, validate_args=False)
    return [MulticlassConfusionMatrix(classes, validate_args=False).to(device), curves.to(device)]


def _worst_of(parts: Sequence[Samples | None], count: int) -> Samples | None:
    there = [part for part in parts if part]
    if not there:
        return None
    every = Samples.joined(there)
    return every.chosen(every.losses.argsort(descending=True, stable=True)[:count])


def show_results(writer: Any, results: Results, trainer: Trainer, options: Any) -> None:
    """Draw the results of one validation: those of `callback.Options` that are on."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    step, names = steps_done(trainer), class_names(data, len(results.confusion))
    if options.confusion_matrix:
        writer.figure("confusion_matrix", confusion_matrix(results.confusion, names), step)
    if options.pr_curves:
        writer.precision_recall(results.curves, names, step)
    if results.worst and (figure := _predictions(results.worst, names, data)):
        writer.figure("predictions", figure, step)


def _predictions(worst: Samples, names: Sequence[str], data: Any) -> Figure | None:
    """Truth against prediction for the samples of the largest loss, those first."""
    images = pictures(worst.inputs, data)
    if images is None:
        return None
    shares, answers = worst.predictions.max(dim=1)
    titles, colors = [], []
    for target, answer, share in zip(
        worst.targets.tolist(), answers.tolist(), shares.tolist(), strict=True
    ):
        wrong = f", not {names[answer]}" if target != answer else ""
        titles.append(f"{names[target]}{wrong} {share:.0%}")
        colors.append("firebrick" if wrong else "black")
    return image_grid(as_arrays(images), titles, colors)


def confusion_matrix(counts: Tensor, class_names: Sequence[str]) -> Figure:
    """Truth by row, prediction by column: counts (C, C), coloured as shares of each row."""
    size = max(4.0, min(12.0, 0.5 * len(counts) + 1.5))
    figure = new_figure(size, size)
    axes = figure.subplots()
    plot_confusion_matrix(
        counts / counts.sum(dim=1, keepdim=True).clamp(min=1),
        ax=axes,
        add_text=len(counts) <= MOST_NUMBERS,
        labels=list(class_names),
        cmap="Blues",
    )
    for text, count in zip(axes.texts, counts.flatten().tolist(), strict=False):
        text.set(text=f"{count:.0f}" if count else "", fontsize=8)
    if len(counts) > 2 * MOST_NUMBERS:
        axes.set(xticks=[], yticks=[])
    return figure
