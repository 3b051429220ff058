"""Handwritten digits that come with scikit-learn: real data that needs no download."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onecurve.data.images import Datasets, ImageDataModule
from onecurve.data.splits import stratified_split


class Digits(ImageDataModule):
    """Grey images of 8 x 8 pixels: the first `samples` of 1,797."""

    def __init__(
        self, *, samples: int, val_size: int, test_size: int, split_seed: int, **options: Any
    ) -> None:
        super().__init__(**options)
        self.samples = samples
        self.sizes = (val_size, test_size)
        self.split_seed = split_seed

    def load_datasets(self) -> Datasets:
        spec = find_spec("sklearn")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        # To import scikit-learn takes as long as the rest of a rank's start.
        file = Path(spec.submodule_search_locations[0], "datasets/data/digits.csv.gz")
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", max_rows=self.samples))
        images = table[:, :64].mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
        labels = table[:, 64].long()
        train, val, test = stratified_split(labels, self.sizes, self.split_seed)
        everything = self.in_memory(images, labels)
        return everything.subset(train), everything.subset(val), everything.subset(test)
