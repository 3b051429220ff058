"""A loader over a stream: every rank reads all of it, and keeps its share of each global batch.

Exact: the batches are those of one process, with worker processes too, each of which reads a copy
of the stream: a rank's share is cut from each before it is collated. So every rank pays for reading
the whole stream, though not for collating and moving it; unless the data set has a method
``keep(start, stop, size)`` and the loader ``drop_last=True``: of each `size` samples, counted from
where a process begins to read, it may then yield None for all but those from `start` to `stop`.
Asks for: a stream that yields the same on every rank, which is compared for the first batch.
Goes on inside an epoch where the data set has `state_dict` and `load_state_dict` and is read in
this process, or where the loader has them, as torchdata's StatefulDataLoader. They count samples of
the whole stream: any number of ranks goes on with them.
"""

from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

from torch.utils.data import DataLoader

from ..compat.of_torch import iterator_of, set_iterator
from .random import from_tensors, get_state, set_state, to_tensors
from .rows import Cut, cut_rows, fingerprint
from .share import SharedLoader, part_of

END = object()


class StreamLoader(SharedLoader):
    """A rank's share of what a `DataLoader` over an `IterableDataset` yields.

    Attributes:
        fingerprint: Tells the first batch, of all ranks, from others.
        is_compared: Whether it was found to be the same on all ranks.
    """

    epoch: int
    _trained: int
    _ended: bool
    _states: dict[int, Any]
    _put: Any
    is_compared: bool

    def __init__(
        self, loader: DataLoader[Any], *, rank: int, num_replicas: int, training: bool
    ) -> None:
        super().__init__(loader, rank, num_replicas)
        dataset: Any = loader.dataset
        source = copy(loader)
        # A DataLoader lets nobody set this.
        vars(source).update(_iterator=None)
        if loader.batch_size is not None:
            source.collate_fn = Cut(loader.collate_fn, rank, num_replicas)
        keeps = loader.drop_last and hasattr(dataset, "keep")
        if keeps and loader.batch_size is not None:
            part = part_of(loader.batch_size, rank, num_replicas)
            dataset.keep(part.start, part.stop, loader.batch_size)
        keeper: Any = None
        if training and is_stateful(loader):
            keeper = source
        elif training and is_stateful(dataset) and loader.num_workers == 0:
            keeper = dataset
        vars(self).update(_source=source, _keeps=keeps, _keeper=keeper, training=training)
        vars(self).update(fingerprint=0, is_compared=False)
        self._reset(0)

    def _reset(self, epoch: int, batches: int = 0, put: Any = None) -> None:
        vars(self).update(epoch=epoch, _totals={}, _ended=False)
        # Batches of this epoch that were trained on, and that were read.
        vars(self).update(_trained=batches, _read=batches)
        # Where the source stood before each batch, and where it has to be put.
        vars(self).update(_states={} if put is None else {batches: put}, _put=put)

    def begin(self, epoch: int) -> None:
        if epoch != self.epoch or not self.training:
            self._reset(epoch, 0, self._behind())

    def _behind(self) -> Any:
        """What was read ahead and never trained on is read again."""
        if self._keeper is None or self._read == self._trained:
            return self._put
        return {**self._states[self._trained], "random": None}

    @property
    def _iterator(self) -> Any:
        """Lightning ends the worker processes of what it finds here."""
        return iterator_of(self._source)

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        set_iterator(self._source, iterator)

    def __iter__(self) -> Iterator[Any]:
        # A loader makes its iterator at once.
        if not self._ended or not self.training:
            self._put = self._behind()
            self._read = self._trained if self.training else 0
        start, self._ended = self._read, False
        put, self._put = self._put, None
        if put is not None and put["source"] is not None:
            # Asked for its state now, torchdata's loader would begin at its start.
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
        if isinstance(self._source.collate_fn, Cut):
            batch, total, number = read
        else:
            name = type(self.dataset).__name__
            batch, total = cut_rows(read, self.rank, self.num_replicas, name)
            number = fingerprint(read) if is_first else 0
        if is_first:
            self.fingerprint = 0 if self._keeps else number
        return batch, total

    def trained(self, batch_idx: int) -> None:
        self._trained = max(self._trained, batch_idx + 1)
        for number in [number for number in self._states if number < self._trained]:
            del self._states[number]

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands: independent of rank and world size."""
        is_over = self._ended and self._read == self._trained
        place = {"epoch": self.epoch, "batches": self._trained, "is_over": int(is_over)}
        stood = self._states.get(self._trained) or {"source": None, "random": None}
        random = None if stood["random"] is None else to_tensors(stood["random"])
        return place | {"kept_by": self._kept_by(), "source": stood["source"], "random": random}

    def _kept_by(self) -> str:
        return f"{type(self._keeper).__name__} with {self.loader.num_workers} workers"

    def load_state_dict(self, state: dict[str, Any], is_inside: bool = False) -> None:
        """Go on where another run stopped."""
        source, batches, epoch = state["source"], state["batches"], state["epoch"]
        if source is not None and self._kept_by() != state["kept_by"]:
            source = None
        if is_inside and batches and source is None:
            raise ValueError(
                f"{type(self.dataset).__name__} cannot be put where it stood; "
                "give it state_dict and load_state_dict and read it with num_workers=0, "
                "use torchdata's StatefulDataLoader"
            )
        random = from_tensors(state["random"]) if is_inside and state.get("random") else None
        if not is_inside and state["is_over"]:
            epoch, batches = epoch + 1, 0
        put = None if source is None else {"source": source, "random": random}
        self._reset(epoch, batches, put)


def is_stateful(part: Any) -> bool:
    """Whether it can say where it stands, and be put there."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
