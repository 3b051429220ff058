"""Training data as people have it: 21 samples in batches of 10, the last smaller than the ranks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

SAMPLES, BATCH = 21, 10


def pairs(number: int = SAMPLES) -> TensorDataset:
    """Inputs (N, 4) and targets (N, 2)."""
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(number, 4, generator=drawn)
    return TensorDataset(inputs, torch.stack([inputs.sin().sum(1), inputs.square().sum(1)], 1))


def plain() -> DataLoader[Any]:
    return DataLoader(pairs(), BATCH, shuffle=True)


def validation() -> DataLoader[Any]:
    return DataLoader(pairs(), BATCH)


def weighted() -> DataLoader[Any]:
    weights = torch.arange(1.0, SAMPLES + 1)
    return DataLoader(pairs(), BATCH, sampler=WeightedRandomSampler(weights, SAMPLES + 5))


def with_replacement() -> DataLoader[Any]:
    data = pairs()
    return DataLoader(data, BATCH, sampler=RandomSampler(data, replacement=True, num_samples=33))


class Buckets(BatchSampler):
    """Batches of other sizes, as samplers by length make them."""

    def __init__(self) -> None:
        self.sizes = [4, 9, 8, 1]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(22).split(self.sizes)
        for number in torch.randperm(len(self.sizes)):
            yield order[number].tolist()


def buckets() -> DataLoader[Any]:
    return DataLoader(pairs(22), batch_sampler=Buckets())


class Augmented(Dataset[Any]):
    """Noise on every sample."""

    def __init__(self) -> None:
        self.pairs = pairs(30)

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.pairs[index]
        return inputs + 0.1 * torch.randn(4), targets


def split() -> DataLoader[Any]:
    half, _ = random_split(Augmented(), [21, 9], torch.Generator().manual_seed(1))
    return DataLoader(half, BATCH, shuffle=True)


class Dictionaries(Augmented):
    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.pairs[index]
        return {"x": inputs, "more": [targets, {"name": str(index)}]}


def dictionaries() -> DataLoader[Any]:
    return DataLoader(Dictionaries(), BATCH, shuffle=True)


class Nested(Augmented):
    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.pairs[index]
        return inputs, {"sum": targets[0], "more": (targets[1],)}


def nested() -> DataLoader[Any]:
    return DataLoader(Nested(), BATCH + 1, shuffle=True)


def two() -> dict[str, DataLoader[Any]]:
    return {"a": DataLoader(pairs(20), 10, shuffle=True), "b": DataLoader(pairs(12), 4)}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from pairs()


def stream() -> DataLoader[Any]:
    return DataLoader(Stream(), BATCH)


def tokens() -> DataLoader[Any]:
    """Inputs (N, 4), and one of two words for each, or padding: all that a rank has of a batch."""
    inputs = pairs().tensors[0]
    words = torch.randint(2, (SAMPLES,), generator=torch.Generator().manual_seed(1))
    words[[1, 3, 4, 7]] = -1
    words[BATCH : BATCH + BATCH // 2] = -1
    return DataLoader(TensorDataset(inputs, words), BATCH)
