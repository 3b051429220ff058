"""The base class of data modules of tables: rows of numbers, split, in batches."""

from collections.abc import Sequence
from typing import Annotated

import torch
from lightning import LightningDataModule
from onecurve.errors import UserError
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]

Rows = tuple[Tensor, Tensor]


class Table(LightningDataModule):
    """Base of the data modules: a subclass reads the rows in `read`.

    The loaders yield features (N, F) and targets (N,), in the units of the table. The task
    computes means and deviations from the training rows, `rows("train")`.

    Args:
        features: names of the columns that the network sees.
        target: name of the column that is predicted.
        batch_size: rows in a training step, over all processes.
        val_fraction: part of the rows held out for validation.
        test_fraction: part of the rows held out for the test.
        split_seed: seed of the split.
    """

    def __init__(
        self,
        *,
        features: Sequence[str],
        target: str,
        batch_size: Count,
        val_fraction: Fraction,
        test_fraction: Fraction,
        split_seed: int,
    ) -> None:
        super().__init__()
        self.features = list(features)
        self.target = target
        self.batch_size = batch_size
        self.fractions = (val_fraction, test_fraction)
        self.split_seed = split_seed
        self.parts: dict[str, TensorDataset] = {}

    def read(self) -> Rows:
        """Return all features (N, F) and targets (N,), as float32; NaN where there are none."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Read the rows once, and split them. For prediction there may be too few to split."""
        if "all" not in self.parts:
            self.parts["all"] = TensorDataset(*self.read())
        features, targets = self.rows("all")
        if targets.isnan().any() and stage != "predict":
            raise UserError(
                f"data.target={self.target}: these rows have no such column; "
                "give others, or predict it: python predict.py"
            )
        held_out = [round(fraction * len(targets)) for fraction in self.fractions]
        sizes = [len(targets) - sum(held_out), *held_out]
        if min(sizes) < 2 and stage == "predict":
            return
        if min(sizes) < 2:
            raise UserError(
                f"data: {len(targets)} rows cannot be split into parts of {sizes[0]}, {sizes[1]} "
                f"and {sizes[2]} for training, validation and test, which need 2 each; "
                "give more rows, or try data.val_fraction=0.2 data.test_fraction=0.2"
            )
        order = torch.randperm(
            len(targets), generator=torch.Generator().manual_seed(self.split_seed)
        )
        for name, rows in zip(("train", "val", "test"), torch.split(order, sizes), strict=True):
            self.parts[name] = TensorDataset(features[rows], targets[rows])

    def rows(self, part: str) -> Rows:
        """Features (N, F) and targets (N,) of "train", "val", "test" or "all"."""
        features, targets = self.parts[part].tensors
        return features, targets

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled batches of the training rows."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Batches of the validation rows, in order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Batches of the test rows, in order."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Batches of the test rows, in order."""
        return self._loader("test")

    def _loader(self, part: str, shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.parts[part], batch_size=self.batch_size, shuffle=shuffle)
