"""Loaders over an `IterableDataset`: every rank reads the full stream, and keeps its share.

Exact: the batches are those of one process, also with worker processes. A rank takes its share of
each batch before collating it, so every rank pays for reading the full stream, but not for
collating and moving it.
Requires: a stream that yields the same samples on every rank; the first batch is compared.
Resumes inside an epoch at once if the data set has `state_dict` and `load_state_dict` and is read
in this process, or if the loader has them, like torchdata's StatefulDataLoader; else batches that
have been trained on are read again and dropped. The state counts samples of the full stream, so any
number of ranks can resume from it.
"""

from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from itertools import count
from typing import Any
from zlib import crc32

import numpy as np
import torch
from lightning.fabric.utilities.data import sized_len
from torch import Tensor
from torch.utils.data import DataLoader

from ..compat.of_torch import iterator_of, set_iterator, tree_leaves
from .position import BEGINNING, END
from .random import States
from .share import SharedLoader, rows_of_rank, slice_of_rank


class StreamLoader(SharedLoader):
    """A rank's share of the batches of a `DataLoader` over an `IterableDataset`."""

    epoch: int = 0
    _ended: bool = False
    _put: Any = None

    def __init__(
        self, loader: DataLoader[Any], *, rank: int, num_replicas: int, training: bool
    ) -> None:
        super().__init__(loader, rank, num_replicas, training)
        dataset: Any = loader.dataset
        source = copy(loader)
        # Through `vars`, because DataLoader forbids setting attributes.
        vars(source).update(_iterator=None)
        if loader.batch_size is not None:
            source.collate_fn = CollateShare(loader.collate_fn, rank, num_replicas)
        keeper: Any = None
        if training and is_stateful(loader):
            keeper = source
        elif training and is_stateful(dataset) and loader.num_workers == 0:
            keeper = dataset
        # Of what has a state: the state before each batch, and the one to load before a pass.
        vars(self).update(_source=source, _keeper=keeper, _states={})

    def begin(self, epoch: int) -> None:
        if epoch != self.epoch or not self.training:
            put = self._behind()
            super().begin(epoch)
            vars(self).update(epoch=epoch, _ended=False, _states={}, _put=put)

    def _behind(self) -> Any:
        """The state to load so that batches that were prefetched but not trained on are reread."""
        if self._keeper is None or self.passes.next == self.passes.count:
            return self._put
        return {**self._states[self.passes.count], "random": None}

    @property
    def _iterator(self) -> Any:
        """The iterator whose worker processes Lightning shuts down."""
        return iterator_of(self._source)

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        set_iterator(self._source, iterator)

    def __iter__(self) -> Iterator[Any]:
        if not self._ended or not self.training:
            self._put = self._behind()
            self.passes.next = self.passes.count
        self._ended = False
        if self.keeps_workers:
            self._source.generator = torch.Generator().manual_seed(torch.initial_seed())
        put, self._put = self._put, None
        if put is None:
            if self.passes.resumed is None:  # else it is read again first
                self._note()
            keeps = sized_len(self.loader) is not None
            return self._batches(self.passes.over(self._source, keeps=keeps))
        # Noted without `state_dict()`, which would make torchdata's loader start over.
        self._keeper.load_state_dict(deepcopy(put["source"]))
        self._states[self.passes.next] = {**put}
        source = iter(self._source)
        if put["random"] is not None:
            put["random"].restore(())
        return self._batches(source)

    def _batches(self, source: Iterator[Any]) -> Iterator[Any]:
        start = self.passes.next
        for number in count(start):
            if number in self._states:
                self._states[number]["random"] = States.of(())
            if (read := next(source, END)) is END:
                break
            batch, self._totals[number] = self._share_of(read, is_first=number == start)
            self.passes.next = number + 1
            self._note()
            yield batch
        self._ended = True
        self._note()

    def _note(self) -> None:
        if self._keeper is not None:
            source = deepcopy(self._keeper.state_dict())
            self._states[self.passes.next] = {"source": source, "random": States.of(())}

    def _share_of(self, read: Any, is_first: bool) -> tuple[Any, int]:
        if isinstance(self._source.collate_fn, CollateShare):
            batch, total, number = read
        else:
            name = type(self.dataset).__name__
            batch, total = rows_of_rank(read, self.rank, self.num_replicas, name)
            number = fingerprint(read) if is_first else 0
        if is_first:
            self.fingerprint = number
        return batch, total

    def trained(self, batch_idx: int) -> None:
        super().trained(batch_idx)
        for number in [number for number in self._states if number < self.passes.count]:
            del self._states[number]

    def position(self) -> dict[str, Any] | None:
        position, noted = super().position(), self._states.get(self.passes.count)
        if noted is None:
            return position
        random = noted["random"] and noted["random"].to_tensors()
        kept = {"by": self._kept_by(), "source": noted["source"], "random": random}
        return {**(position or {**BEGINNING, "batches": self.passes.count}), "kept": kept}

    def _kept_by(self) -> str:
        return f"{type(self._keeper).__name__} with {self.loader.num_workers} workers"

    def resume(self, position: dict[str, Any]) -> str | None:
        if (kept := self._kept(position)) is not None:
            self.passes.stand_at(position)
            random = kept["random"] and States.from_tensors(kept["random"])
            self._put = {"source": kept["source"], "random": random}
            return None
        super().resume(position)
        return self._read_again(type(self.dataset).__name__)

    def resume_after_epoch(self, position: dict[str, Any]) -> None:
        """Read on where an epoch has ended, if the state says where that is."""
        if kept := self._kept(position):
            self._put = {"source": kept["source"], "random": None}

    def _kept(self, position: dict[str, Any]) -> dict[str, Any] | None:
        """The source's state in a position, if the same source is read in the same way."""
        kept: dict[str, Any] | None = position.get("kept")
        is_known = kept is not None and self._keeper is not None and kept["by"] == self._kept_by()
        return kept if is_known else None


def is_stateful(loader: Any) -> bool:
    """Whether a loader or a data set can save and restore its position."""
    names = ("state_dict", "load_state_dict")
    return all(callable(getattr(loader, name, None)) for name in names)


class CollateShare:
    """Collates a rank's share of each global batch, in the process that reads the batch."""

    def __init__(self, collate: Callable[[Any], Any], rank: int, num_replicas: int) -> None:
        self.collate = collate
        self.rank = rank
        self.num_replicas = num_replicas
        self._is_first = True

    def __call__(self, samples: list[Any]) -> tuple[Any, int, int]:
        """The share, the number of samples in the global batch, and the batch's fingerprint."""
        is_first, self._is_first = self._is_first, False
        rows = slice_of_rank(len(samples), self.rank, self.num_replicas)
        return self.collate(samples[rows]), len(samples), fingerprint(samples) if is_first else 0


def fingerprint(samples: Any) -> int:
    """A checksum of the numbers and strings in samples, the same in every process."""
    number = 0
    for leaf in tree_leaves(samples):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            plain = leaf.detach().as_subclass(Tensor)
            leaf = plain.cpu().flatten().view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            number = crc32(leaf.tobytes(), number)
        elif isinstance(leaf, int | float | str | bytes):
            number = crc32(repr(leaf).encode(), number)
    return number
