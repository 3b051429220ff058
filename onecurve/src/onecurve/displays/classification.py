"""Displays of classification: what a network predicts in a validation, counted and drawn."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from matplotlib.figure import Figure
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassPrecisionRecallCurve

from ..figures import image_grid, new_figure
from .images import as_arrays, class_names, pictures

THRESHOLDS = 101
MOST_NUMBERS = 20
"""Classes up to which a confusion matrix shows its counts."""


class Samples(NamedTuple):
    """Some samples, on the CPU."""

    inputs: Tensor
    targets: Tensor
    """Labels (N,)."""
    values: Tensor
    """For the worst: the loss of each (N,); for the first: the network's features (N, D)."""
    predictions: Tensor
    """Probabilities (N, C)."""

    @classmethod
    def joined(cls, parts: Sequence["Samples"]) -> "Samples":
        return cls(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def chosen(self, order: Tensor | slice) -> "Samples":
        return Samples(*(values[order] for values in self))


class Results(NamedTuple):
    """The predictions of all ranks, on the CPU."""

    confusion: Tensor
    """Samples (C, C) by truth and prediction."""
    curves: Tensor
    """Samples (T, C, 2, 2) by threshold, class, truth and prediction."""
    worst: Samples | None
    first: Samples | None


class Collector:
    """Collects the predictions of a classification task in a validation, by hooks.

    Under every strategy a step calls the task's `forward`, whose outputs are the predictions. The
    inputs of the last layer are the features.

    Args:
        task: The task.
        worst: How many samples of the largest loss to keep.
        first: How many samples to keep with their features.
    """

    def __init__(self, task: LightningModule, worst: int, first: int) -> None:
        self.worst_count = worst
        self.first_count = first
        self.confusion: MulticlassConfusionMatrix | None = None
        self.curves: MulticlassPrecisionRecallCurve | None = None
        self.worst: Samples | None = None
        self.first: list[Samples] = []
        self._outputs: Tensor | None = None
        self._features: list[Tensor] = []
        self._hooks = [task.register_forward_hook(self._on_forward)]
        self._last = last_layer(task)
        if first and self._last is not None:
            self._hooks.append(self._last.register_forward_pre_hook(self._on_last_layer))

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def take(self, batch: Any, strategy: Any) -> bool:
        """Count a batch after its step. All ranks call this together.

        Returns:
            Whether the task classifies: labels (N,) and outputs (N, C) for a batch.
        """
        outputs, self._outputs = self._outputs, None
        features, self._features = self._features, []
        if not _is_classified(batch, outputs):
            return False
        assert outputs is not None
        inputs, targets = batch[0], batch[1]
        outputs = outputs.float()
        probabilities = outputs.softmax(dim=1)
        if self.confusion is None or self.curves is None:
            classes, device = outputs.shape[1], outputs.device
            self.confusion = MulticlassConfusionMatrix(classes, validate_args=False).to(device)
            self.curves = MulticlassPrecisionRecallCurve(
                classes, thresholds=THRESHOLDS, validate_args=False
            ).to(device)
        self.confusion.update(probabilities, targets)
        self.curves.update(probabilities, targets)
        if self.worst_count:
            losses = F.cross_entropy(outputs, targets, reduction="none")
            worst = losses.topk(min(self.worst_count, len(losses))).indices
            new = _on_cpu(Samples(inputs, targets, losses, probabilities).chosen(worst))
            self._keep_worst(new)
        wanted = -(-self.first_count // strategy.data_parallel_size)
        missing = wanted - sum(len(part.targets) for part in self.first)
        if missing > 0:
            if self._last is not None:
                features = [strategy.whole_input(self._last, value) for value in features]
            whole = _joined([part for part in strategy.of_all_parts(_cpu(features)) if part])
            if whole is not None and len(whole) == len(targets):
                some = _on_cpu(Samples(inputs, targets, whole, probabilities))
                self.first.append(some.chosen(slice(missing)))
        return True

    def of_all_ranks(self, strategy: Any) -> Results | None:
        """Gather the predictions of all ranks; None if there are none. All ranks call this."""
        if self.confusion is None or self.curves is None:
            return None
        worst = [part for part in strategy.of_all_samples(self.worst) if part]
        first = [part for parts in strategy.of_all_samples(self.first) for part in parts]
        chosen = Samples.joined(worst) if worst else None
        if chosen:
            order = chosen.values.argsort(descending=True, stable=True)
            chosen = chosen.chosen(order[: self.worst_count])
        return Results(
            strategy.reduce(self.confusion.confmat.clone(), reduce_op="sum").cpu(),
            strategy.reduce(self.curves.confmat.clone(), reduce_op="sum").cpu(),
            chosen,
            Samples.joined(first).chosen(slice(self.first_count)) if first else None,
        )

    def _keep_worst(self, new: Samples) -> None:
        both = new if self.worst is None else Samples.joined([self.worst, new])
        order = both.values.argsort(descending=True, stable=True)
        self.worst = both.chosen(order[: self.worst_count])

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


def _is_classified(batch: Any, outputs: Tensor | None) -> bool:
    if outputs is None or outputs.ndim != 2:
        return False
    if not (isinstance(batch, tuple | list) and len(batch) >= 2):
        return False
    targets = batch[1]
    labels = isinstance(targets, Tensor) and targets.shape == outputs.shape[:1]
    return labels and not targets.is_floating_point() and isinstance(batch[0], Tensor)


def _cpu(features: list[Tensor]) -> list[Tensor]:
    # Replicas on several GPUs finish in any order.
    ordered = sorted(features, key=lambda part: part.get_device())
    return [part.flatten(1).float().cpu() for part in ordered]


def _joined(parts: list[list[Tensor]]) -> Tensor | None:
    return torch.cat(parts[-1]) if parts else None


def _on_cpu(samples: Samples) -> Samples:
    return Samples(*(values.cpu() for values in samples))


class Show:
    """Draws the results of one validation.

    Args:
        writer: Of the logger.
        results: Of all ranks.
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
        figure = confusion_matrix(self.results.confusion, self.names)
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


def confusion_matrix(counts: Tensor, class_names: Sequence[str]) -> Figure:
    """Truth by row, prediction by column, as shares of each row.

    Args:
        counts: Samples (C, C).
        class_names: A name for each class.
    """
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    size = max(4.0, min(12.0, 0.5 * len(counts) + 1.5))
    figure = new_figure(size, size)
    axes = figure.subplots()
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(counts) <= 2 * MOST_NUMBERS:
        axes.set_xticks(range(len(counts)), class_names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(counts)), class_names, fontsize=8)
    if len(counts) <= MOST_NUMBERS:
        for row, column in counts.nonzero().tolist():
            color = "white" if shares[row, column] > 0.5 else "black"
            number = str(int(counts[row, column]))
            axes.text(column, row, number, ha="center", va="center", fontsize=8, color=color)
    return figure


def precision_recall(
    precision: Tensor, recall: Tensor, class_names: Sequence[str], most: int = 10
) -> Figure:
    """A curve for each class; of many classes those with the smallest area.

    Args:
        precision: Values (C, T), by rising threshold.
        recall: Likewise.
        class_names: A name for each class.
        most: How many curves at most.
    """
    areas = -(precision * recall.diff(dim=1, append=recall[:, -1:])).sum(dim=1)
    figure = new_figure(5, 5)
    axes = figure.subplots()
    for index in areas.argsort()[:most].sort().values.tolist():
        axes.plot(recall[index].numpy(), precision[index].numpy(), label=class_names[index])
    axes.set_xlabel("recall")
    axes.set_ylabel("precision")
    axes.legend(fontsize=8)
    return figure
