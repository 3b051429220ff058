"""A small U-Net as a sequence of layers that every strategy can split: skips pass through them.

Source: Ronneberger, Fischer and Brox, "U-Net: convolutional networks for biomedical image
segmentation", 2015. Here convolutions are padded, so that a mask is as large as its image.
"""

from collections import OrderedDict
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

Count = Annotated[int, Field(ge=1)]

Tensors = tuple[Tensor, ...]


def convolutions(in_channels: int, out_channels: int) -> nn.Sequential:
    """Two 3 x 3 convolutions, each with ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.ReLU(),
    )


class Down(nn.Module):
    """Halves the size; the input stays in the tuple before the result, as a skip."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.convolutions = convolutions(in_channels, 2 * in_channels)

    def forward(self, inputs: Tensor | Tensors) -> Tensors:
        """(skips..., (N, C, H, W)) to (skips..., (N, C, H, W), (N, 2 C, H/2, W/2))."""
        *skips, last = inputs if isinstance(inputs, tuple) else (inputs,)
        return (*skips, last, self.convolutions(F.max_pool2d(last, 2)))


class Up(nn.Module):
    """Doubles the size, and concatenates the last skip, which is removed from the tuple."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.convolutions = convolutions(3 * out_channels, out_channels)

    def forward(self, inputs: Tensors) -> Tensor | Tensors:
        """(skips..., (N, C, H, W), (N, 2 C, H/2, W/2)) to (skips..., (N, C, H, W))."""
        *skips, skip, last = inputs
        larger = F.interpolate(last, skip.shape[-2:])
        outputs: Tensor = self.convolutions(torch.cat([skip, larger], dim=1))
        return (*skips, outputs) if skips else outputs


def unet(
    in_channels: int,
    num_classes: int,
    width: Count,
    depth: Count,
) -> nn.Sequential:
    """Build a U-Net: images (N, in_channels, H, W) to logits (N, num_classes, H, W).

    Args:
        in_channels: channels of an image.
        num_classes: number of outputs of each pixel.
        width: channels at full size; each halving doubles them.
        depth: how often the size is halved.
    """
    widths = [width * 2**level for level in range(depth)]
    layers: OrderedDict[str, nn.Module] = OrderedDict(first=convolutions(in_channels, width))
    for level, channels in enumerate(widths, start=1):
        layers[f"down{level}"] = Down(channels)
    for level, channels in reversed(list(enumerate(widths, start=1))):
        layers[f"up{level}"] = Up(channels)
    layers["output"] = nn.Conv2d(width, num_classes, 1)
    return nn.Sequential(layers)
