"""Handwritten digits that come with scikit-learn: real data that needs no download."""

from typing import Any

import torch

from .images import Datasets, ImageDataModule
from .splits import stratified_split


class Digits(ImageDataModule):
    """1,797 grey images of 8 x 8 pixels.

    Source: test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998),
    as `sklearn.datasets.load_digits` ships it.

    Args:
        val_size: images held out for validation.
        test_size: images held out for the test.
        split_seed: seed of the split.
        options: those of `ImageDataModule`.
    """

    def __init__(self, *, val_size: int, test_size: int, split_seed: int, **options: Any) -> None:
        super().__init__(**options)
        self.val_size = val_size
        self.test_size = test_size
        self.split_seed = split_seed

    def load_datasets(self) -> Datasets:
        """Read the digits and split them."""
        # Imported here because it takes a second, and only this data set needs it.
        from sklearn.datasets import load_digits

        digits = load_digits()
        # Grey values are 0..16.
        images = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
        labels = torch.from_numpy(digits.target).long()
        train, val, test = stratified_split(
            labels, (self.val_size, self.test_size), self.split_seed
        )
        everything = self.in_memory(images, labels)
        return everything.subset(train), everything.subset(val), everything.subset(test)
