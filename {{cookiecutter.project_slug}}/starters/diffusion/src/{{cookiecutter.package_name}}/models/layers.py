"""Layers that pass two tensors to each other: the image, and the condition it depends on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .words import Words

Pair = tuple[Tensor, Tensor]
"""(hidden, condition): (N, width) or (N, width, H, W), and (N, width)."""


class Condition(nn.Module):
    """One vector for the noise level of an image and its caption.

    Args:
        caption_length: bytes of a caption.
        words_width: width of what is made of the caption.
        width: of the vector.
        waves: in how many frequencies the time is seen.
    """

    frequencies: Tensor

    def __init__(self, caption_length: int, words_width: int, width: int, waves: int = 32) -> None:
        super().__init__()
        self.words = Words(caption_length, words_width)
        self.meaning = nn.Linear(words_width, width)
        self.time = nn.Sequential(nn.Linear(2 * waves, width), nn.SiLU(), nn.Linear(width, width))
        frequencies = torch.logspace(0, 2, waves)  # 1 to 100 radians from clean to noise
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, time: Tensor, words: Tensor) -> Tensor:
        """Map times (N,) in 0..1 and captions (N, L) to (N, width)."""
        angles = time.unsqueeze(1) * self.frequencies
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
        return F.silu(self.time(waves) + self.meaning(self.words(words)))


class Enter(nn.Module):
    """The first layer.

    Args:
        pixels: turns images into what the layers between work on.
        condition: turns time and words into what they depend on.
    """

    def __init__(self, pixels: nn.Module, condition: Condition) -> None:
        super().__init__()
        self.pixels = pixels
        self.condition = condition

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor]) -> Pair:
        """Take images (N, C, H, W), times (N,) and captions (N, L)."""
        images, time, words = inputs
        return self.pixels(images), self.condition(time, words)


class Residual(nn.Module):
    """Adds to what becomes the image something that depends on the condition.

    Args:
        norm: normalises what becomes the image.
        change: makes of that what is added.
        width: of both.
    """

    def __init__(self, norm: nn.Module, change: nn.Module, width: int) -> None:
        super().__init__()
        self.norm = norm
        self.scale_and_shift = nn.Linear(width, 2 * width)
        self.change = change

    def forward(self, inputs: Pair) -> Pair:
        """The same shapes again."""
        hidden, condition = inputs
        by = self.scale_and_shift(condition)
        scale, shift = by.unflatten(1, (-1, *[1] * (hidden.ndim - 2))).chunk(2, dim=1)
        return hidden + self.change(self.norm(hidden) * (1 + scale) + shift), condition


class Leave(nn.Module):
    """The last layer.

    Args:
        pixels: turns what the layers between have made into images.
    """

    def __init__(self, pixels: nn.Module) -> None:
        super().__init__()
        self.pixels = pixels

    def forward(self, inputs: Pair) -> Tensor:
        """Return images (N, C, H, W)."""
        images: Tensor = self.pixels(inputs[0])
        return images


def zeroed(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """A layer that adds nothing at first: what is around it learns faster so."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
