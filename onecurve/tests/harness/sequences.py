"""A task of another kind than images: a small transformer that classifies made-up sequences.

Used as a user would use a network and data of their own, by `_target_`:

    model._target_=sequences.transformer data._target_=sequences.Sequences
"""

from collections import OrderedDict
from typing import Any

import torch
from lightning import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH, VOCABULARY, CLASSES = 12, 32, 4


class Embedding(nn.Module):
    """Tokens (N, T) to vectors (N, T, width), with learned positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width) * 0.02)

    def forward(self, tokens: Tensor) -> Any:
        return self.tokens(tokens) + self.positions


class Mean(nn.Module):
    """Vectors (N, T, width) to their mean (N, width)."""

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors.mean(dim=1)


def transformer(width: int = 16, depth: int = 4, **_: Any) -> nn.Sequential:
    """Tokens (N, T) to logits (N, CLASSES). It takes and ignores what configures image models."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=Embedding(width))
    for number in range(depth):
        # A smooth activation: where the input of a ReLU is zero to rounding, its gradient is a
        # matter of chance, and two runs that are equal but for rounding part.
        layers[f"block{number}"] = nn.TransformerEncoderLayer(
            width, 2, 4 * width, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
    layers["mean"] = Mean()
    layers["head"] = nn.Linear(width, CLASSES)
    return nn.Sequential(layers)


class Sequences(LightningDataModule):
    """Sequences whose class is the quarter of the vocabulary that most of their tokens are from."""

    def __init__(self, batch_size: int, samples: int = 1297, **_: Any) -> None:
        super().__init__()
        self.batch_size = batch_size
        random = torch.Generator().manual_seed(0)
        self.parts = [self._make(size, random) for size in (samples, 250, 250)]

    def _make(self, size: int, random: torch.Generator) -> TensorDataset:
        labels = torch.randint(CLASSES, (size,), generator=random)
        typical = labels[:, None] * (VOCABULARY // CLASSES) + torch.randint(
            VOCABULARY // CLASSES, (size, LENGTH), generator=random
        )
        noise = torch.randint(VOCABULARY, (size, LENGTH), generator=random)
        keep = torch.rand(size, LENGTH, generator=random) < 0.4
        return TensorDataset(torch.where(keep, typical, noise), labels)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts[0], self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts[1], self.batch_size)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts[2], self.batch_size)
