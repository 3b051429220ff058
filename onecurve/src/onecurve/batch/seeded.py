"""Data sets whose random transforms depend only on seed, epoch and sample.

Wrapped in `seeded`, a data set draws the same numbers for a sample in any worker process, on any
rank and after a resume, and new ones in each epoch.
"""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import Dataset, IterableDataset

from ..errors import UserError
from .random import draw_from, global_seed, kept_state
from .share import Proxy


class SeededDataset(Proxy, Dataset[Any]):
    """Wraps a map-style data set: see `seeded`.

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

    def __getitem__(self, index: Any) -> Any:
        # A custom sampler may yield keys that are not numbers.
        number = index if isinstance(index, int) and index >= 0 else crc32(repr(index).encode())
        with kept_state():
            draw_from(self.seed, int(self.epoch), number)
            return self.dataset[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        return [self[index] for index in indices]


def seeded(dataset: Any, seed: int | None = None) -> Any:
    """Make a data set's random transforms depend only on (seed, epoch, index).

    Args:
        dataset: A map-style data set. One with `__getitems__` is asked for one sample at a time.
        seed: By default the seed of the run.

    Returns:
        A wrapper with the data set's attributes. Every strategy of this library calls its
        ``set_epoch`` when an epoch begins.
    """
    if isinstance(dataset, IterableDataset):
        raise UserError(
            f"seeded: {type(dataset).__name__} is a stream, whose samples have no index; seed a "
            "generator in its __iter__, such as np.random.default_rng((seed, epoch, number))"
        )
    return SeededDataset(dataset, global_seed() if seed is None else seed)


def set_epoch(loader: Any, epoch: int) -> None:
    """Call `set_epoch` of a loader's seeded data set, even if it is inside a Subset."""
    dataset = getattr(loader, "dataset", None)
    while dataset is not None:
        if isinstance(dataset, SeededDataset):
            dataset.set_epoch(epoch)
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
