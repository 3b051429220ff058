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
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..compat.of_torch import iterator_of, set_iterator, tree_leaves
from .random import from_tensors, get_state, set_state, to_tensors
from .share import SharedLoader, rows_of_rank, slice_of_rank

END = object()


class StreamLoader(SharedLoader):
    """A rank's share of the batches of a `DataLoader` over an `IterableDataset`."""

    epoch: int
    _trained: int
    _ended: bool
    _states: dict[int, Any]
    _put: Any

    def __init__(
        self, loader: DataLoader[Any], *, rank: int, num_replicas: int, training: bool
    ) -> None:
        super().__init__(loader, rank, num_replicas)
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
        vars(self).update(_source=source, _keeper=keeper, training=training)
        self._reset(0)

    def _reset(self, epoch: int, batches: int = 0, put: Any = None) -> None:
        vars(self).update(epoch=epoch, _totals={}, _ended=False)
        # Batches of this epoch that have been trained on, and that have been read.
        vars(self).update(_trained=batches, _read=batches)
        # The source's state before each batch, and the state to load before the next pass.
        vars(self).update(_states={} if put is None else {batches: put}, _put=put)

    def begin(self, epoch: int) -> None:
        if epoch != self.epoch or not self.training:
            self._reset(epoch, 0, self._behind())

    def _behind(self) -> Any:
        """The state to load so that batches that were prefetched but not trained on are reread."""
        if self._keeper is None or self._read == self._trained:
            return self._put
        return {**self._states[self._trained], "random": None}

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
            self._read = self._trained if self.training else 0
        start, self._ended = self._read, False
        put, self._put = self._put, None
        if put is not None and put["source"] is not None:
            # Noted without `state_dict()`, which would make torchdata's loader start over.
            self._keeper.load_state_dict(deepcopy(put["source"]))
            self._states[self._read] = {**put}
        else:
            self._note()
        source = iter(self._source)
        if put is not None and put["random"] is not None:
            set_state(put["random"])
        return self._batches(source, start)

    def _batches(self, source: Iterator[Any], start: int) -> Iterator[Any]:
        while True:
            if self._keeper is not None:
                self._states[self._read]["random"] = get_state()
            read = next(source, END)
            if read is END:
                break
            batch, self._totals[self._read] = self._share_of(read, is_first=self._read == start)
            self._read += 1
            self._note()
            yield batch
        self._ended = True
        self._note()

    def _note(self) -> None:
        if self._keeper is not None:
            source = deepcopy(self._keeper.state_dict())
            self._states[self._read] = {"source": source, "random": get_state()}

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
        self._trained = max(self._trained, batch_idx + 1)
        for number in [number for number in self._states if number < self._trained]:
            del self._states[number]

    @property
    def is_put(self) -> bool:
        """Whether the next pass begins where a checkpoint was written."""
        return self._put is not None

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, independent of rank and world size; empty if nobody knows."""
        if self._keeper is None:
            return {}
        is_over = self._ended and self._read == self._trained
        place = {"epoch": self.epoch, "batches": self._trained, "is_over": int(is_over)}
        stood = self._states.get(self._trained) or {"source": None, "random": None}
        random = None if stood["random"] is None else to_tensors(stood["random"])
        return place | {"kept_by": self._kept_by(), "source": stood["source"], "random": random}

    def _kept_by(self) -> str:
        return f"{type(self._keeper).__name__} with {self.loader.num_workers} workers"

    def load_state_dict(self, state: dict[str, Any], is_inside: bool = False) -> None:
        """Resume where another run stopped, if the state says where that is."""
        source, batches, epoch = state["source"], state["batches"], state["epoch"]
        if self._keeper is None or self._kept_by() != state["kept_by"]:
            source = None
        random = from_tensors(state["random"]) if is_inside and state.get("random") else None
        if not is_inside and state["is_over"]:
            epoch, batches = epoch + 1, 0
        put = None if source is None else {"source": source, "random": random}
        self._reset(epoch, 0 if put is None else batches, put)


def is_stateful(part: Any) -> bool:
    """Whether a loader or a data set can save and restore its position."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


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
        part = slice_of_rank(len(samples), self.rank, self.num_replicas)
        return self.collate(samples[part]), len(samples), fingerprint(samples) if is_first else 0


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
