"""Data sets whose random transforms draw what follows from seed, epoch and sample."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .seeding import Indices, draw_from

# Tells a sample of a stream from a step, which has fewer coordinates.
STREAM = 1


class _Wrapped:
    """Stands for a data set that the user wrote, whose attributes are those of this one.

    A `worker_init_fn` finds this as `get_worker_info().dataset`, and what it sets there is for the
    data set inside.
    """

    dataset: Any

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not yet there while a worker unpickles this
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)


class DrawnBySample(_Wrapped, Dataset[Any]):
    """A data set whose random transforms draw from (seed, epoch, index), in any worker process.

    Args:
        dataset: The one that the user wrote.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        vars(self).update(dataset=dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = []
        for index in indices:
            if isinstance(indices, Indices):
                # A sampler of one's own may yield keys that are no numbers.
                number = index if isinstance(index, int) else crc32(repr(index).encode())
                draw_from(indices.seed, indices.epoch, number)
            samples.append(self.dataset[index])
        return samples


class DrawnStream(_Wrapped, IterableDataset[Any]):
    """A stream that draws from (seed, epoch, worker process, number of the sample).

    What it draws before its first sample, such as an order, it draws once more after a resume, and
    with it that one sample.

    Args:
        dataset: The one that the user wrote.
        seed: Seed of the run.
        shared: Whether worker processes outlive an epoch, and must hear of the next.
    """

    seed: int
    epoch: torch.Tensor
    read: int
    """Samples of this process, of this epoch."""

    def __init__(self, dataset: Any, seed: int, shared: bool = False) -> None:
        epoch = torch.zeros((), dtype=torch.int64)
        if shared:
            epoch.share_memory_()  # type: ignore[no-untyped-call]
        vars(self).update(dataset=dataset, seed=seed, epoch=epoch, read=0)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        epoch = int(self.epoch)
        where = (self.seed, epoch, worker.id if worker is not None else 0)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        number = self._begin()
        draw_from(*where, 0, STREAM)
        for sample in self.dataset:
            number += 1
            vars(self).update(read=number)
            yield sample
            draw_from(*where, number, STREAM)
        vars(self).update(read=0)

    def _begin(self) -> int:
        return 0


class StatefulStream(DrawnStream):
    """One that can say where it stands (`state_dict`), and go on there (`load_state_dict`)."""

    def _begin(self) -> int:
        return self.read

    def state_dict(self) -> dict[str, Any]:
        # Its own goes on to change.
        return {"read": self.read, "dataset": deepcopy(self.dataset.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(read=state["read"])
        self.dataset.load_state_dict(deepcopy(state["dataset"]))
