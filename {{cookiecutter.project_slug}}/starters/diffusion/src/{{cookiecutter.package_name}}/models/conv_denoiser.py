"""Predicts the noise in images of any size from their captions: convolutions."""

from collections import OrderedDict
from typing import Annotated

from onecurve.errors import UserError
from pydantic import Field
from torch import nn

from .layers import Condition, Enter, Leave, Residual, zeroed

Count = Annotated[int, Field(ge=1)]
WordsWidth = Annotated[int, Field(ge=4)]


def conv_denoiser(
    channels: int,
    image_size: int,
    caption_length: int,
    width: Count,
    words_width: WordsWidth,
    blocks: Count,
    patch: Count,
) -> nn.Sequential:
    """Build it: noisy images (N, C, H, W), times (N,), captions (N, L) to their noise.

    Args:
        channels: of an image.
        image_size: its height and width.
        caption_length: bytes of a caption.
        width: of the layers; a multiple of 8.
        words_width: of what is made of a caption; a multiple of 4.
        blocks: number of residual layers.
        patch: side of the squares of pixels that become one; they divide the image.

    Raises:
        UserError: the images are not a whole number of patches wide.
    """
    if image_size % patch:
        raise UserError(
            f"model.patch={patch}: must divide data.image_size={image_size}; try model.patch=1"
        )

    def convolution(inputs: int, outputs: int) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, 3, padding=1)

    pixels = channels * patch * patch
    enter = nn.Sequential(nn.PixelUnshuffle(patch), convolution(pixels, width))
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        enter=Enter(enter, Condition(caption_length, words_width, width))
    )
    for number in range(1, blocks + 1):
        change = nn.Sequential(
            nn.SiLU(),
            convolution(width, width),
            nn.GroupNorm(8, width),
            nn.SiLU(),
            zeroed(convolution(width, width)),
        )
        layers[f"block{number}"] = Residual(nn.GroupNorm(8, width), change, width)
    leave = nn.Sequential(
        nn.GroupNorm(8, width), nn.SiLU(), convolution(width, pixels), nn.PixelShuffle(patch)
    )
    layers["leave"] = Leave(leave)
    return nn.Sequential(layers)
