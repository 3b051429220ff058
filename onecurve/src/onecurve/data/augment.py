"""Augmentations that draw new random numbers for each image of a batch.

Torchvision's transforms draw once per call, so all images of a batch would be cropped or flipped
in the same way.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RandomCrop(nn.Module):
    """Pad each image with black, then crop it to its old size at a random place.

    Args:
        padding: Black pixels on each side.
    """

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, images: Tensor) -> Tensor:
        """Crop images (N, C, H, W)."""
        count, channels, height, width = images.shape
        device = images.device
        places = 2 * self.padding + 1
        top, left = torch.randint(places, (2, count, 1), device=device)
        rows = (top + torch.arange(height, device=device)).view(count, 1, height, 1)
        columns = (left + torch.arange(width, device=device)).view(count, 1, 1, width)
        image = torch.arange(count, device=device).view(count, 1, 1, 1)
        channel = torch.arange(channels, device=device).view(1, channels, 1, 1)
        return F.pad(images, [self.padding] * 4)[image, channel, rows, columns]


class RandomHorizontalFlip(nn.Module):
    """Flip each image, left to right, with some probability.

    Args:
        p: The probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, images: Tensor) -> Tensor:
        """Flip images (N, C, H, W)."""
        flip = torch.rand(len(images), 1, 1, 1, device=images.device) < self.p
        return torch.where(flip, images.flip(-1), images)
