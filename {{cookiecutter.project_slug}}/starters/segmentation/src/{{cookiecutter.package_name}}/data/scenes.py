"""Scenes of handwritten digits, for segmentation and multi-label classification."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from onecurve.errors import UserError
from torch import Tensor

from .digits import read_digits
from .images import (
    Batch,
    Count,
    Datasets,
    ImageDataModule,
    InMemoryImages,
    stratified_split,
)

DIGITS, SIDE = 10, 8
INK = 48  # grey values above, of 255, are a digit's own; others let through what lies below


class Scenes(ImageDataModule):
    """Digits of 8 x 8 pixels at random places of a black image; later ones cover earlier ones.

    The parts show different digits: none of those in a test scene was ever trained on.

    Args:
        targets: what is to be found: `masks`, the class of each pixel (N, H, W), 0 where there is
            no digit, 1 for a zero and so on; or `labels` (N, 10), 1.0 for each digit that is there.
        most_digits: largest number of digits in a scene; the smallest is one.
        num_samples: scenes to train on.
        num_val: scenes to validate on.
        num_test: scenes to test on.
        held_out: number of digits that only validation shows, and that only the test shows.
        seed: the same seed gives the same scenes.
        options: those of `ImageDataModule`.
    """

    def __init__(
        self,
        *,
        targets: Literal["masks", "labels"],
        most_digits: Count,
        num_samples: Count,
        num_val: Count,
        num_test: Count,
        held_out: Sequence[Count],
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if self.image_size < SIDE or self.channels != 1:
            raise UserError(
                f"data.image_size={self.image_size} data.channels={self.channels}: scenes are grey "
                f"and of {SIDE} pixels at least; try data.image_size=32 data.channels=1"
            )
        self.targets = targets
        self.most_digits = most_digits
        self.sizes = (num_samples, num_val, num_test)
        self.held_out = held_out
        self.seed = seed

    def load_datasets(self) -> Datasets:
        """Split the digits, and compose the scenes of each part."""
        images, labels = read_digits()
        random = torch.Generator().manual_seed(self.seed)
        train, val, test = (
            self._composed(images[part, 0], labels[part], size, random)
            for part, size in zip(
                stratified_split(labels, self.held_out, self.seed), self.sizes, strict=True
            )
        )
        return train, val, test

    def _composed(
        self, digits: Tensor, labels: Tensor, size: int, random: torch.Generator
    ) -> InMemoryImages:
        side = self.image_size
        images = torch.zeros(size, side, side, dtype=torch.uint8)
        masks = torch.zeros(size, side, side, dtype=torch.long)
        present = torch.zeros(size, DIGITS)
        counts = torch.randint(1, self.most_digits + 1, (size,), generator=random)
        pixels = torch.arange(SIDE)
        for number in range(self.most_digits):
            scenes = (counts > number).nonzero().squeeze(1)
            chosen = torch.randint(len(digits), scenes.shape, generator=random)
            corners = torch.randint(side - SIDE + 1, (2, len(scenes), 1), generator=random)
            rows, columns = corners + pixels
            at = (scenes[:, None, None], rows[:, :, None], columns[:, None, :])
            digit, label = digits[chosen], labels[chosen]
            ink = digit > INK
            images[at] = torch.where(ink, digit, images[at])
            masks[at] = torch.where(ink, label[:, None, None] + 1, masks[at])
            present[scenes, label] = 1
        batch: Batch = images.unsqueeze(1), masks if self.targets == "masks" else present
        return InMemoryImages(*batch)
