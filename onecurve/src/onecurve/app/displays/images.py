"""A network's inputs as images, with titles; a data module may say how it made them."""

from typing import Any

from torch import Tensor


def pictures(inputs: Tensor, data: Any) -> Tensor | None:
    """Images (N, 3, H, W) in 0..1 on the CPU, of inputs (N, C, H, W); None if they are no images.

    A data module with a method `denormalize(inputs)` undoes its normalization; otherwise the
    smallest and the largest value become 0 and 1.
    """
    if inputs.ndim != 4 or not inputs.is_floating_point():
        return None
    inputs = inputs.detach().float().cpu()
    if hasattr(data, "denormalize"):
        inputs = data.denormalize(inputs)
    else:
        inputs = (inputs - inputs.min()) / (inputs.max() - inputs.min()).clamp(min=1e-12)
    channels = 3 if inputs.shape[1] >= 3 else 1
    return inputs[:, :channels].clamp(0, 1).expand(-1, 3, -1, -1)


def class_names(data: Any, count: int) -> list[str]:
    """The data module's names of classes, if it has enough, or else their numbers."""
    names = getattr(data, "class_names", None) or ()
    return [str(name) for name in (names if len(names) >= count else range(count))][:count]


def titles(targets: Tensor, data: Any) -> list[str] | None:
    """The titles of images: of the data module's `titles(targets)`, or names of classes."""
    if hasattr(data, "titles"):
        lines: list[str] = data.titles(targets)
        return lines
    if targets.ndim != 1:
        return None
    labels = targets.tolist()
    names = class_names(data, max(labels) + 1)
    return [names[label] for label in labels]


def labelled(batch: Any) -> tuple[Tensor, Tensor] | None:
    """The inputs and the labels (whole numbers) that a batch begins with; None for others."""
    if not (isinstance(batch, tuple | list) and len(batch) >= 2):
        return None
    inputs, labels = batch[0], batch[1]
    if not (isinstance(inputs, Tensor) and isinstance(labels, Tensor)):
        return None
    return None if labels.is_floating_point() else (inputs, labels)


def as_arrays(images: Tensor) -> list[Any]:
    """The images of `pictures`, for `figures.image_grid`."""
    return list(images.permute(0, 2, 3, 1).numpy())
