"""Handwritten digits that come with scikit-learn: real data that needs no download."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from lightning import LightningDataModule
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from onecurve import UserError

Batch = tuple[Tensor, Tensor]
Count = Annotated[int, Field(ge=1)]


class Digits(LightningDataModule):
    """Grey images of 8 x 8 pixels, stretched to `image_size`: the first `samples` of 1,797."""

    def __init__(
        self,
        *,
        root: str | None,
        class_names: Sequence[str],
        num_classes: Annotated[int, Field(ge=2)],
        channels: Count,
        image_size: Count,
        batch_size: Count,
        num_workers: Annotated[int, Field(ge=0)],
        mean: Sequence[float],
        std: Sequence[Annotated[float, Field(gt=0)]],
        augment: Mapping[str, Callable[[Tensor], Tensor] | None],
        samples: int,
        val_size: Count,
        test_size: Count,
        split_seed: int,
    ) -> None:
        super().__init__()
        if num_classes < 10:
            raise UserError("data.class_names: names too few, the labels go up to 9")
        self.class_names = [str(name) for name in class_names]
        self.num_classes = num_classes
        self.image_size = image_size
        self.batch_size, self.num_workers = batch_size, num_workers
        self.mean, self.std = (torch.tensor([*values]) for values in (mean, std))
        self.augment = [transform for transform in augment.values() if transform is not None]
        self.samples, self.split_seed = samples, split_seed
        self.sizes = [samples - val_size - test_size, val_size, test_size]

    def setup(self, stage: str) -> None:
        spec = find_spec("sklearn")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        # To import scikit-learn takes as long as the rest of a rank's start.
        file = Path(spec.submodule_search_locations[0], "datasets/data/digits.csv.gz")
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", max_rows=self.samples))
        images = table[:, :64].mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
        if self.image_size != 8:
            images = F.interpolate(images, (self.image_size,) * 2, mode="bilinear", antialias=True)
        labels = table[:, 64].long()
        order = torch.randperm(
            self.samples, generator=torch.Generator().manual_seed(self.split_seed)
        )
        parts = torch.split(order, self.sizes)
        self.datasets = [TensorDataset(images[part], labels[part]) for part in parts]

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(0, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(1)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader(2)

    predict_dataloader = test_dataloader

    def _loader(self, part: int, shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(
            self.datasets[part],
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        images, labels = batch
        inputs = images / 255
        for transform in self.augment if self.trainer and self.trainer.training else ():
            inputs = transform(inputs)
        inputs = (inputs - self.mean.to(inputs)) / self.std.to(inputs)
        if self.trainer is None:
            return inputs, labels
        # Lightning converts a batch to the precision of the run before this hook, as bytes.
        converted: Batch = self.trainer.precision_plugin.convert_input((inputs, labels))
        return converted

    def denormalize(self, inputs: Tensor) -> Tensor:
        return inputs * self.std.to(inputs) + self.mean.to(inputs)
