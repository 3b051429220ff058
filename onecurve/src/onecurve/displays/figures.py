"""Pictures of what the network makes of images."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from ..figures import new_figure

MOST_NUMBERS = 20
"""Classes up to which a confusion matrix has its counts written in."""


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
