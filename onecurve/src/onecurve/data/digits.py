"""Handwritten digits that come with scikit-learn: real data that needs no download."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .images import Datasets, ImageDataModule
from .splits import stratified_split


class Digits(ImageDataModule):
    """1,797 grey images of 8 x 8 pixels.

    Source: test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998),
    as `sklearn.datasets.load_digits` ships it.
    """

    def __init__(self, *, val_size: int, test_size: int, split_seed: int, **options: Any) -> None:
        super().__init__(**options)
        self.val_size = val_size
        self.test_size = test_size
        self.split_seed = split_seed

    def load_datasets(self) -> Datasets:
        """Read the digits and split them."""
        images, labels = read_digits()
        train, val, test = stratified_split(
            labels, (self.val_size, self.test_size), self.split_seed
        )
        everything = self.in_memory(images, labels)
        return everything.subset(train), everything.subset(val), everything.subset(test)


def read_digits() -> tuple[Tensor, Tensor]:
    """All images (N, 1, 8, 8), uint8, and labels (N,), int64.

    Raises:
        UserError: If scikit-learn is not installed.
    """
    table = torch.from_numpy(np.loadtxt(_file(), delimiter=","))
    # Grey values are 0..16.
    images = table[:, :64].mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    return images, table[:, 64].long()


def _file() -> Path:
    """The file that scikit-learn's `load_digits` reads, found without importing it.

    Importing scikit-learn takes as long as the rest of a rank's start.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.submodule_search_locations is None:
        raise UserError(
            "data=digits: these images come with scikit-learn; type: pip install scikit-learn"
        )
    return Path(spec.submodule_search_locations[0], "datasets/data/digits.csv.gz")
