"""Noise that is put into images bit by bit, and taken out again.

An image x of variance 1 at time t in 0..1 is ``sqrt(s) x + sqrt(1 - s) noise``: s is the share of
the image in it, 1 at time 0 and next to nothing at time 1.

Sources: Ho, Jain and Abbeel, "Denoising diffusion probabilistic models", 2020; Nichol and Dhariwal,
"Improved denoising diffusion probabilistic models", 2021 (the cosine); Song, Meng and Ermon,
"Denoising diffusion implicit models", 2021 (the way back).
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

OFFSET = 0.008  # of the paper: the first steps are not too small
LEAST = 1e-4  # the image can be had back from any time


def share(time: Tensor) -> Tensor:
    """The share of the image in what it is at a time, along half a cosine."""
    angle = (time + OFFSET) / (1 + OFFSET) * (math.pi / 2)
    start = math.cos(OFFSET / (1 + OFFSET) * (math.pi / 2))
    return (angle.cos() / start).square().clamp(min=LEAST)


def noised(images: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """Images (N, C, H, W) with noise of the same shape, as they are at times (N,)."""
    kept = share(time).view(-1, 1, 1, 1)
    return kept.sqrt() * images + (1 - kept).sqrt() * noise


def ddim(noise_in: Callable[[Tensor, Tensor], Tensor], noise: Tensor, steps: int) -> Tensor:
    """Make images out of noise, without drawing any more of it.

    Args:
        noise_in: what is noise in images (N, C, H, W) of times (N,).
        noise: where to begin, (N, C, H, W).
        steps: how often `noise_in` is asked.

    Returns:
        Images (N, C, H, W) in -1..1.
    """
    images = noise
    for now, then in pairwise(torch.linspace(1, 0, steps + 1, dtype=torch.float64)):
        time = now.to(images).expand(len(images))
        kept, next_kept = share(now).item(), share(then).item()
        found = noise_in(images, time).to(images)
        clean = (images - math.sqrt(1 - kept) * found) / math.sqrt(kept)
        clean = clean.clamp(-1, 1)
        found = (images - math.sqrt(kept) * clean) / math.sqrt(1 - kept)
        images = math.sqrt(next_kept) * clean + math.sqrt(1 - next_kept) * found
    return images
