"""Resizes images of any size to the square that the network gets."""

import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError

RESIZE_MODES = ("pad", "stretch")


def resize_images(images: Tensor, size: int, mode: str) -> Tensor:
    """Resize images to `size` x `size` pixels.

    Args:
        images: (N, C, H, W), uint8.
        size: height and width of the result.
        mode: `pad` centres the image in a black square (as LeNet-5's paper does with 28 -> 32) and
            shrinks it first, in proportion, if it is too large. `stretch` scales height and width
            to the square. Scaling is bilinear, with antialiasing.

    Raises:
        UserError: another mode.
    """
    if mode == "stretch":
        return scale_images(images, size, size)
    if mode != "pad":
        raise UserError(
            f"data.resize={mode}: must be one of {', '.join(RESIZE_MODES)}; try data.resize=pad"
        )
    height, width = images.shape[-2:]
    if max(height, width) > size:
        shrink = size / max(height, width)
        height, width = max(1, round(height * shrink)), max(1, round(width * shrink))
        images = scale_images(images, height, width)
    top, left = (size - height) // 2, (size - width) // 2
    return F.pad(images, (left, size - width - left, top, size - height - top))


def scale_images(images: Tensor, height: int, width: int) -> Tensor:
    """Scale uint8 images (N, C, H, W) to `height` x `width`."""
    if images.shape[-2:] == (height, width):
        return images
    return F.interpolate(images, (height, width), mode="bilinear", antialias=True)
