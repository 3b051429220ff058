"""Data sets whose random transforms draw what follows from seed, epoch and sample.

Wrapped in `seeded`, a data set draws the same for a sample in any worker process, on any rank and
after a resume; each epoch draws other numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .proxy import Proxy
from .random import draw_from, global_seed, kept_state

# Tells a sample of a stream from one with an index.
STREAM = 1


class _Seeded(Proxy):
    """Stands for a data set.

    A `worker_init_fn` finds this as `get_worker_info().dataset`, and what it sets there is for the
    data set inside.
    """

    _of = "dataset"
    dataset: Any
    seed: int
    epoch: torch.Tensor

    def __init__(self, dataset: Any, seed: int) -> None:
        # Workers that outlive an epoch hear of the next one, too.
        epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        vars(self).update(dataset=dataset, seed=seed, epoch=epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw other numbers from now on; a strategy of ours calls it at each epoch's begin."""
        self.epoch.fill_(epoch)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)


class SeededDataset(_Seeded, Dataset[Any]):
    """One with indices: see `seeded`."""

    def __getitem__(self, index: Any) -> Any:
        # A sampler of one's own may yield keys that are no numbers.
        number = index if isinstance(index, int) and index >= 0 else crc32(repr(index).encode())
        with kept_state():
            draw_from(self.seed, int(self.epoch), number)
            return self.dataset[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        return [self[index] for index in indices]


class SeededStream(_Seeded, IterableDataset[Any]):
    """One that is read in order: it draws from (seed, epoch, worker process, number of the sample).

    What it draws before its first sample, such as an order, it draws once more after a resume.
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
    """Let a data set's random transforms follow from (seed, epoch, index).

    Args:
        dataset: Of any kind. One that makes a whole batch at once (`__getitems__`) is asked for one
            sample after the other.
        seed: By default that of the run.

    Returns:
        What stands for it. Its ``set_epoch`` says that an epoch begins, which every strategy of
        this library does.
    """
    kind = SeededStream if isinstance(dataset, IterableDataset) else SeededDataset
    return kind(dataset, global_seed() if seed is None else seed)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's seeded data set, also one inside a Subset, that an epoch begins."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None:
        if isinstance(dataset, _Seeded):
            dataset.set_epoch(epoch)
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
