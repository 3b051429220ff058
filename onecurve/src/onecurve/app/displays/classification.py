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
    """Some samples on the CPU, with labels (N,) and probabilities (N, C).

    The values are, for the worst, the loss of each (N,); for the first, the features (N, D).
    """

    inputs: Tensor
    targets: Tensor
    values: Tensor
    predictions: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Samples"]) -> "Samples":
        return cls(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def chosen(self, order: Tensor | slice) -> "Samples":
        return Samples(*(values[order].cpu() for values in self))


class Results(NamedTuple):
    """The predictions of all ranks, on the CPU.

    Counts are (C, C) by truth and prediction; of curves, (T, C, 2, 2) by threshold, class, truth
    and prediction.
    """

    confusion: Tensor
    curves: Tensor
    worst: Samples | None
    first: Samples | None


class Collector:
    """Collects the predictions of a classification task in a validation, by hooks.

    Under every strategy a step calls the task's `forward`, whose outputs are the predictions. The
    inputs of the last layer are the features. Kept are so many samples of the largest loss
    (`worst`), and of the `first` ones with their features.
    """

    def __init__(self, task: LightningModule, worst: int, first: int) -> None:
        self.worst_count = worst
        self.first_count = first
        # The confusion matrix and the curves, once the number of classes is known.
        self.counts: list[Any] = []
        self.worst: Samples | None = None
        self.first: list[Samples] = []
        self._outputs: Tensor | None = None
        self._features: list[Tensor] = []
        self._hooks = [task.register_forward_hook(self._on_forward)]
        self._last = last_layer(task)
        if first and self._last is not None:
            self._hooks.append(self._last.register_forward_pre_hook(self._on_last_layer))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def take(self, batch: Any, strategy: Any) -> bool:
        """Count a batch after its step, if it has labels (N,) and outputs (N, C), on all ranks."""
        outputs, self._outputs = self._outputs, None
        features, self._features = self._features, []
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
        wanted = -(-self.first_count // strategy.data_parallel_size)
        missing = wanted - sum(len(part.targets) for part in self.first)
        if missing > 0:
            if self._last is not None:
                features = [strategy.whole_input(self._last, value) for value in features]
            parts = [part for part in strategy.of_all_parts(_cpu(features)) if part]
            if parts and len(whole := torch.cat(parts[-1])) == len(targets):
                some = Samples(inputs, targets, whole, probabilities)
                self.first.append(some.chosen(slice(missing)))
        return True

    def of_all_ranks(self, strategy: Any) -> Results | None:
        """Gather the predictions of all ranks; None if there are none. All ranks call this."""
        if not self.counts:
            return None
        worst = _worst_of(strategy.of_all_samples(self.worst), self.worst_count)
        first = [part for parts in strategy.of_all_samples(self.first) for part in parts]
        confusion, curves = (
            strategy.reduce(each.confmat.clone(), reduce_op="sum").cpu() for each in self.counts
        )
        chosen = Samples.joined(first).chosen(slice(self.first_count)) if first else None
        return Results(confusion, curves, worst, chosen)

    def _on_forward(self, task: nn.Module, inputs: Any, outputs: Any) -> None:
        # The first call: Lightning passes the result of the step through DDP's forward, too.
        if self._outputs is None and isinstance(outputs, Tensor):
            self._outputs = outputs

    def _on_last_layer(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        # Once for each part of the batch, where a strategy splits it.
        self._features += [value.detach() for value in inputs[:1] if isinstance(value, Tensor)]


def last_layer(task: nn.Module) -> nn.Module | None:
    """The last module with parameters of its own; its inputs are the features."""
    own = [
        part for part in task.modules() if next(part.parameters(recurse=False), None) is not None
    ]
    return own[-1] if own else None


def _counts(classes: int, device: torch.device) -> list[Any]:
    curves = MulticlassPrecisionRecallCurve(classes, thresholds=THRESHOLDS, validate_args=False)
    return [MulticlassConfusionMatrix(classes, validate_args=False).to(device), curves.to(device)]


def _cpu(features: list[Tensor]) -> list[Tensor]:
    # Replicas on several GPUs finish in any order.
    ordered = sorted(features, key=lambda part: part.get_device())
    return [part.flatten(1).float().cpu() for part in ordered]


def _worst_of(parts: Sequence[Samples | None], count: int) -> Samples | None:
    there = [part for part in parts if part]
    if not there:
        return None
    every = Samples.joined(there)
    return every.chosen(every.values.argsort(descending=True, stable=True)[:count])


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
    if first := results.first:
        labels = [names[target] for target in first.targets.tolist()]
        writer.embedding(first.values, labels, pictures(first.inputs, data), step)


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
