"""Your data: any LightningDataModule with DataLoaders of the global batch size."""

from typing import Annotated, Any

import torch
from lightning import LightningDataModule
from pydantic import Field
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

Count = Annotated[int, Field(ge=1)]


class Mine(LightningDataModule):
    """Synthetic data to start from: the sum of the inputs' sines.

    Args:
        num_samples: how many, of which a tenth is for validation and a tenth for the test.
        num_features: numbers in a sample.
        batch_size: samples in a training step, over all processes.
        seed: the same seed gives the same samples.
    """

    def __init__(
        self,
        *,
        num_samples: Annotated[int, Field(ge=10)],
        num_features: Count,
        batch_size: Count,
        seed: int,
    ) -> None:
        super().__init__()
        self.shape = (num_samples, num_features)
        self.batch_size = batch_size
        self.seed = seed

    def setup(self, stage: str) -> None:
        """Make or read the samples. All processes do so, and must get the same ones."""
        drawn = torch.Generator().manual_seed(self.seed)
        inputs = torch.randn(self.shape, generator=drawn)
        samples = TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
        self.train, self.val, self.test = random_split(samples, [0.8, 0.1, 0.1], drawn)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches."""
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Batches in order."""
        return self._loader(self.val)

    def test_dataloader(self) -> DataLoader[Any]:
        """Batches in order."""
        return self._loader(self.test)

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test set, for which predict.py predicts."""
        return self._loader(self.test)

    def _loader(self, samples: Dataset[Any], shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(samples, batch_size=self.batch_size, shuffle=shuffle)
