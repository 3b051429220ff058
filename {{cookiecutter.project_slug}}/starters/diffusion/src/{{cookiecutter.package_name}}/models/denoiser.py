"""Predicts the noise in small images from their captions: fully connected layers."""

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import nn

from .layers import Condition, Enter, Leave, Residual, zeroed

Count = Annotated[int, Field(ge=1)]
WordsWidth = Annotated[int, Field(ge=4)]


def denoiser(
    channels: int,
    image_size: int,
    caption_length: int,
    width: Count,
    words_width: WordsWidth,
    blocks: Count,
) -> nn.Sequential:
    """Build it: noisy images (N, C, H, W), times (N,), captions (N, L) to their noise.

    Args:
        channels: of an image.
        image_size: its height and width.
        caption_length: bytes of a caption.
        width: of the layers.
        words_width: of what is made of a caption; a multiple of 4.
        blocks: number of residual layers.
    """
    shape = (channels, image_size, image_size)
    pixels = channels * image_size * image_size
    enter = nn.Sequential(nn.Flatten(), nn.Linear(pixels, width))
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        enter=Enter(enter, Condition(caption_length, words_width, width))
    )
    for number in range(1, blocks + 1):
        change = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), zeroed(nn.Linear(2 * width, width))
        )
        layers[f"block{number}"] = Residual(nn.LayerNorm(width), change, width)
    leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, pixels), nn.Unflatten(1, shape))
    layers["leave"] = Leave(leave)
    return nn.Sequential(layers)
