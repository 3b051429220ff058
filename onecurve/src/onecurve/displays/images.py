"""What enters the network, as pictures with names, and what it makes of them."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from ..data.for_displays import Denormalizes, NamesClasses, NamesTargets
from ..figures import new_figure


def pictures(inputs: Tensor, data: Any) -> Tensor | None:
    """Images (N, 3, H, W) in 0..1 on the CPU.

    Args:
        inputs: What enters the network: floats (N, C, H, W).
        data: The data module. One of `for_displays.Denormalizes` undoes what it does to images;
            else the smallest and the largest value become 0 and 1.

    Returns:
        None if the inputs are no images.
    """
    if inputs.ndim != 4 or not inputs.is_floating_point():
        return None
    inputs = inputs.detach().float().cpu()
    if isinstance(data, Denormalizes):
        inputs = data.denormalize(inputs)
    else:
        inputs = (inputs - inputs.min()) / (inputs.max() - inputs.min()).clamp(min=1e-12)
    channels = 3 if inputs.shape[1] >= 3 else 1
    return inputs[:, :channels].clamp(0, 1).expand(-1, 3, -1, -1)


def class_names(data: Any, count: int) -> list[str]:
    """Names of that many classes: the data module's, if it has enough, or their numbers."""
    names = (data.class_names or ()) if isinstance(data, NamesClasses) else ()
    return [str(name) for name in (names if len(names) >= count else range(count))][:count]


def titles(targets: Tensor, data: Any) -> list[str] | None:
    """What stands above images with these targets: captions, or names of classes.

    Returns:
        None if nothing is known of them.
    """
    if isinstance(data, NamesTargets):
        return data.titles(targets)
    if targets.ndim != 1:
        return None
    labels = targets.tolist()
    names = class_names(data, max(labels) + 1)
    return [names[label] for label in labels]


def as_arrays(images: Tensor) -> list[Any]:
    """What `figures.image_grid` takes, of `pictures`."""
    return list(images.permute(0, 2, 3, 1).numpy())


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
