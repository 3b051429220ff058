"""Data sets whose random transforms depend only on seed, epoch and sample.

Wrapped in `seeded`, a data set draws the same numbers for a sample in any worker process, on any
rank and after a resume, and new ones in each epoch.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .random import draw_from, global_seed, kept_state
from .share import Proxy

# Part of the seed, to seed samples of a stream differently from samples with an index.
STREAM = 1


class _Seeded(Proxy):
    """Wraps a data set.

    A `worker_init_fn` finds the wrapper as `get_worker_info().dataset`; attributes that it sets
    there are set on the wrapped data set.
    """

    _of = "dataset"
    dataset: Any
    seed: int
    epoch: torch.Tensor

    def __init__(self, dataset: Any, seed: int) -> None:
        # In shared memory, so that persistent workers see a new epoch too.
        epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        vars(self).update(dataset=dataset, seed=seed, epoch=epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw the numbers of another epoch; our strategies call this when an epoch begins."""
        self.epoch.fill_(epoch)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)


class SeededDataset(_Seeded, Dataset[Any]):
    """A seeded map-style data set: see `seeded`."""

    def __getitem__(self, index: Any) -> Any:
        # A custom sampler may yield keys that are not numbers.
        number = index if isinstance(index, int) and index >= 0 else crc32(repr(index).encode())
        with kept_state():
            draw_from(self.seed, int(self.epoch), number)
            return self.dataset[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        return [self[index] for index in indices]


class SeededStream(_Seeded, IterableDataset[Any]):
    """A seeded `IterableDataset`; seeds are (seed, epoch, worker process, number of the sample).

    What it draws before its first sample, such as an order, it draws again after a resume.
    """

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        where = (self.seed, int(self.epoch), worker.id if worker is not None else 0)
        number = 0
        with kept_state():
            draw_from(*where, 0, STREAM)
            samples = iter(self.dataset)
        while True:
            with kept_state():
                draw_from(*where, number, STREAM)
                try:
                    sample = next(samples)
                except StopIteration:
                    return
            number += 1
            yield sample


def seeded(dataset: Any, seed: int | None = None) -> Any:
    """Make a data set's random transforms depend only on (seed, epoch, index).

    Args:
        dataset: A map-style data set or an `IterableDataset`. One with `__getitems__` is asked for
            one sample at a time.
        seed: By default the seed of the run.

    Returns:
        A wrapper with the data set's attributes. Every strategy of this library calls its
        ``set_epoch`` when an epoch begins.
    """
    kind = SeededStream if isinstance(dataset, IterableDataset) else SeededDataset
    return kind(dataset, global_seed() if seed is None else seed)


def set_epoch(loader: Any, epoch: int) -> None:
    """Call `set_epoch` of a loader's seeded data set, even if it is inside a Subset."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None:
        if isinstance(dataset, _Seeded):
            dataset.set_epoch(epoch)
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
