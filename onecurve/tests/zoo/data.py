"""Training data as people have it: 21 samples in batches of 10, the last smaller than the ranks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
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

from onecurve import seeded

SAMPLES, BATCH = 21, 10


def pairs(number: int = SAMPLES) -> TensorDataset:
    """Inputs (N, 4) and targets (N, 2)."""
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(number, 4, generator=drawn)
    return TensorDataset(inputs, torch.stack([inputs.sin().sum(1), inputs.square().sum(1)], 1))


def plain(batch: int = BATCH) -> DataLoader[Any]:
    return DataLoader(pairs(), batch, shuffle=True)


def weighted() -> DataLoader[Any]:
    weights = torch.arange(1.0, SAMPLES + 1)
    return DataLoader(pairs(), BATCH, sampler=WeightedRandomSampler(weights, SAMPLES + 5))


def validation() -> DataLoader[Any]:
    return DataLoader(pairs(), BATCH)


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
    half, _ = random_split(seeded(Augmented()), [21, 9], torch.Generator().manual_seed(1))
    return DataLoader(half, BATCH, shuffle=True)


def dictionaries() -> DataLoader[Any]:
    samples = [sample._asdict() for sample in map(Nested().__getitem__, range(30))]
    return DataLoader(samples, BATCH, shuffle=True)  # type: ignore[arg-type]


class Pair(NamedTuple):
    inputs: Tensor
    targets: Any


class Nested(Augmented):
    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.pairs[index]
        return Pair(inputs, {"sum": targets[0], "more": (targets[1],), "name": str(index)})


def nested() -> DataLoader[Any]:
    return DataLoader(Nested(), BATCH + 1, shuffle=True)


def two_uneven() -> dict[str, DataLoader[Any]]:
    return {"a": DataLoader(pairs(25), 10, shuffle=True), "b": DataLoader(pairs(7), 5)}


def two_at_once() -> CombinedLoader:
    return CombinedLoader({"a": DataLoader(pairs(7), 4), "b": DataLoader(pairs(9), 3)}, "max_size")


def with_a_stream() -> dict[str, DataLoader[Any]]:
    return {"a": DataLoader(pairs(12), 4, shuffle=True), "b": DataLoader(Stream(20), 4)}


class Stream(IterableDataset[Any]):
    """Samples one after the other."""

    def __init__(self, number: int = SAMPLES) -> None:
        self.samples = pairs(number)

    def __iter__(self) -> Iterator[Any]:
        yield from self.samples


class OfRank(Stream):
    """Shares itself out, as streams do for other strategies."""

    def __iter__(self) -> Iterator[Any]:
        rank = dist.get_rank() if dist.is_initialized() else 0
        yield from list(self.samples)[rank:]


class Shuffled(Stream):
    """In an order, and with noise, that are drawn."""

    def __iter__(self) -> Iterator[Any]:
        for index in torch.randperm(len(self.samples)).tolist():
            inputs, targets = self.samples[index]
            yield inputs + 0.1 * torch.randn(4), targets


class Stateful(Shuffled):
    """The same, that goes on where it was, and does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.left = self.left or torch.randperm(len(self.samples)).tolist()
            inputs, targets = self.samples[self.left.pop()]
            yield inputs + 0.1 * torch.randn(4), targets

    def state_dict(self) -> dict[str, Any]:
        return {"left": [*self.left]}  # what is read ahead changes its own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


class StatefulEpochs(Stateful):
    """One that ends, in each of the processes that read it."""

    def __iter__(self) -> Iterator[Any]:
        self.left = self.left or torch.randperm(len(self.samples)).tolist()
        while self.left:
            yield self.samples[self.left.pop()]


class Whole(Stream):
    """Batches one after the other."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes or (9, 1, 11)

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*(part.split(self.sizes) for part in self.samples.tensors), strict=True)


def stream(batch: int | None = BATCH, kind: type[Stream] = Stream) -> DataLoader[Any]:
    return DataLoader(kind(), batch)


class NoLoader:
    """Makes batches by itself."""

    def __init__(self, *sizes: int) -> None:
        self.batches = list(Whole(*sizes))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def whole_batches() -> DataLoader[Any]:
    return DataLoader(Whole(), None)


def several() -> list[DataLoader[Any]]:
    """For validation: another size, and one of unknown length whose last batch is too small."""
    return [validation(), DataLoader(pairs(5), 4), DataLoader(Stream(7), 3)]


def full_batches() -> DataLoader[Any]:
    """Of a data set that takes the indices of a batch at once."""
    samples = pairs()
    return DataLoader(samples, None, sampler=BatchSampler(RandomSampler(samples), 5, False))


class Ragged(Augmented):
    """Sequences of 1 to 5 vectors, and a target each."""

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.pairs[index]
        return inputs * torch.arange(1.0, index % 5 + 2)[:, None], targets


def padded(samples: list[Any]) -> Any:
    """Sequences (N, L, 4), filled with zeros to the longest, their lengths, and targets (N, 2)."""
    sequences, targets = zip(*samples, strict=True)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return (pad_sequence(sequences, batch_first=True), lengths), torch.stack(targets)


def ragged() -> DataLoader[Any]:
    return DataLoader(Ragged(), BATCH + 1, shuffle=True, collate_fn=padded)


def tokens(batch: int = BATCH) -> DataLoader[Any]:
    """Inputs (N, 4), and one of two words for each, or padding: all that a rank has of a batch."""
    inputs = pairs().tensors[0]
    words = torch.randint(2, (SAMPLES,), generator=torch.Generator().manual_seed(1))
    words[[1, 3, 4, 7]] = -1
    words[BATCH : BATCH + BATCH // 2] = -1
    return DataLoader(TensorDataset(inputs, words), batch)
