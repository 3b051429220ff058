"""Augmentations that draw for each image of a batch; torchvision's would draw once for all."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RandomCrop(nn.Module):
    """Pad images (N, C, H, W) with black, then crop each to its old size at a random place."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, images: Tensor) -> Tensor:
        """Crop images (N, C, H, W)."""
        count, _, height, width = images.shape
        padded = F.pad(images, [self.padding] * 4).permute(0, 2, 3, 1)
        corners = torch.randint(2 * self.padding + 1, (2, count, 1), device=images.device)
        rows = corners[0] + torch.arange(height, device=images.device)
        columns = corners[1] + torch.arange(width, device=images.device)
        image = torch.arange(count, device=images.device).view(-1, 1, 1)
        return padded[image, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


class RandomHorizontalFlip(nn.Module):
    """Flip each image, left to right, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, images: Tensor) -> Tensor:
        """Flip images (N, C, H, W)."""
        flip = torch.rand(len(images), 1, 1, 1, device=images.device) < self.p
        return torch.where(flip, images.flip(-1), images)
