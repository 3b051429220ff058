"""Synthetic images of any shape, for tests and measurements."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .images import Datasets, ImageDataModule, InMemoryImages


class Synthetic(ImageDataModule):
    """For each class a random, blurred pattern; each image is its class's pattern plus noise.

    Args:
        num_samples: images to train on.
        num_val: images to validate on.
        num_test: images to test on.
        seed: the same seed gives the same images.
        options: those of `ImageDataModule`.
    """

    def __init__(
        self, *, num_samples: int, num_val: int, num_test: int, seed: int, **options: Any
    ) -> None:
        super().__init__(**options)
        self.sizes = (num_samples, num_val, num_test)
        self.seed = seed

    def load_datasets(self) -> Datasets:
        """Make the images."""
        random = torch.Generator().manual_seed(self.seed)
        coarse = torch.rand(self.num_classes, self.channels, 4, 4, generator=random) * 128
        patterns = F.interpolate(coarse, (self.image_size, self.image_size), mode="bilinear").to(
            torch.uint8
        )
        train, val, test = (self._noisy(patterns, size, random) for size in self.sizes)
        return train, val, test

    def _noisy(self, patterns: Tensor, size: int, random: torch.Generator) -> InMemoryImages:
        labels = torch.randint(len(patterns), (size,), generator=random)
        noise = torch.randint(128, (size, *patterns.shape[1:]), dtype=torch.uint8, generator=random)
        return InMemoryImages(noise.add_(patterns[labels]), labels)
