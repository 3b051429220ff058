"""The confusion matrix of a validation: counted on every rank, and drawn."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule
from matplotlib.figure import Figure
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix
from torchmetrics.utilities.plot import plot_confusion_matrix

from ...figures import new_figure
from .images import labelled

MOST_NUMBERS = 20  # classes up to which a confusion matrix shows its counts


class Confusion:
    """Counts the predictions of a classification task in a validation, by a hook.

    Under every strategy a step calls the task's `forward`, whose outputs are the predictions.
    """

    def __init__(self, task: LightningModule) -> None:
        self._metric: Any = None  # once the number of classes is known
        self._outputs: Tensor | None = None
        self._hook = task.register_forward_hook(self._on_forward)

    def close(self) -> None:
        self._hook.remove()

    def take(self, batch: Any) -> bool:
        """Count a batch after its step, if it has labels (N,) and outputs (N, C)."""
        outputs, self._outputs = self._outputs, None
        pair = labelled(batch)
        if outputs is None or outputs.ndim != 2 or not pair or pair[1].shape != outputs.shape[:1]:
            return False
        if self._metric is None:
            metric = MulticlassConfusionMatrix(outputs.shape[1], validate_args=False)
            self._metric = metric.to(outputs.device)
        self._metric.update(outputs, pair[1])
        return True

    def gather_from_ranks(self, strategy: Any) -> Tensor | None:
        """Counts (C, C) by truth and prediction, on the CPU; None if there are none.

        All ranks call this.
        """
        if self._metric is None:
            return None
        counts: Tensor = strategy.reduce(self._metric.confmat.clone(), reduce_op="sum").cpu()
        return counts

    def _on_forward(self, task: nn.Module, inputs: Any, outputs: Any) -> None:
        # The first call: Lightning passes the result of the step through DDP's forward, too.
        if self._outputs is None and isinstance(outputs, Tensor):
            self._outputs = outputs


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
