"""What enters the network, as pictures with names, where it is images."""

from typing import Any

from torch import Tensor


def pictures(inputs: Tensor, data: Any) -> Tensor | None:
    """Images (N, 3, H, W) in 0..1 on the CPU.

    Args:
        inputs: What enters the network: floats (N, C, H, W).
        data: The data module. Its method `denormalize`, if it has one, undoes what it does to
            images; else the smallest and the largest value become 0 and 1.

    Returns:
        None if the inputs are no images.
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
    """Names of that many classes: the data module's `class_names`, or their numbers."""
    names = [str(name) for name in getattr(data, "class_names", None) or ()]
    return names if len(names) == count else [str(index) for index in range(count)]
