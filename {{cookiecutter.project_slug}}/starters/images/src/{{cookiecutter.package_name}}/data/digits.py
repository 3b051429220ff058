"""Handwritten digits that come with scikit-learn: real data that needs no download."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .images import Count, Datasets, ImageDataModule, stratified_split


class Digits(ImageDataModule):
    """1,797 grey images of 8 x 8 pixels.

    Source: test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998),
    as `sklearn.datasets.load_digits` ships it.
    """

    def __init__(
        self, *, val_size: Count, test_size: Count, split_seed: int, **options: Any
    ) -> None:
        super().__init__(**options)
        self.sizes = (val_size, test_size)
        self.split_seed = split_seed

    def load_datasets(self) -> Datasets:
        """Read the digits and split them."""
        images, labels = read_digits()
        parts = stratified_split(labels, self.sizes, self.split_seed)
        train, val, test = (self.in_memory(images[part], labels[part]) for part in parts)
        return train, val, test


def read_digits() -> tuple[Tensor, Tensor]:
    """All images (N, 1, 8, 8), uint8, and labels (N,), int64; importing scikit-learn is slow."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    file = Path(spec.submodule_search_locations[0], "datasets/data/digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(file, delimiter=","))
    # Grey values are 0..16.
    images = table[:, :64].mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    return images, table[:, 64].long()
