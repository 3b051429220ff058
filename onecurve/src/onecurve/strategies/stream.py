"""A loader over a stream: every rank reads all of it, and keeps its share of each global batch.

Exact: the batches are those of one process, with worker processes too, each of which reads a copy
of the stream: a rank's share is cut from each before it is collated. So every rank pays for reading
the whole stream, though not for collating and moving it; unless the data set has a method
``keep(start, stop, size)`` and the loader ``drop_last=True``: of each `size` samples, counted from
where a process begins to read, it may then yield None for all but those from `start` to `stop`.
Random numbers inside the stream follow from seed, epoch, worker process and sample.
Asks for: a stream that yields the same on every rank, which is compared for the first batch.
Goes on inside an epoch where the data set has `state_dict` and `load_state_dict` and is read in
this process, or where the loader has them, as torchdata's StatefulDataLoader. They count samples of
the whole stream: any number of ranks goes on with them.
"""

from collections.abc import Iterator
from copy import copy
from typing import Any

from torch.utils.data import DataLoader

from .drawn import DrawnStream, StatefulStream
from .seeding import drawing_from
from .shared_loader import Share, SharedLoader, share_of
from .stream_batches import Cut, cut_rows, fingerprint, part_of

END = object()


class StreamLoader(SharedLoader):
    """A rank's share of what a `DataLoader` over an `IterableDataset` yields.

    Args:
        loader: What the user wrote; its attributes are those of this one.
        rank: Coordinate of this rank among the ranks that see different samples.
        num_replicas: Number of those ranks.
        seed: Seed of the run.
        training: Whether it is for training: only then it can go on inside an epoch.

    Attributes:
        fingerprint: Tells the first batch, of all ranks, from others.
    """

    def __init__(
        self, loader: DataLoader[Any], *, rank: int, num_replicas: int, seed: int, training: bool
    ) -> None:
        dataset: Any = loader.dataset
        self.dataset = dataset
        self.rank = rank
        self.num_replicas = num_replicas
        self.seed = seed
        kind = StatefulStream if _is_stateful(dataset) else DrawnStream
        self.stream = kind(dataset, seed, loader.persistent_workers)
        self.loader = copy(loader)
        # A DataLoader lets nobody set these.
        vars(self.loader).update(dataset=self.stream, _iterator=None)
        if loader.batch_size is not None:
            self.loader.collate_fn = Cut(loader.collate_fn, rank, num_replicas)
        self._keeps = loader.drop_last and hasattr(dataset, "keep")
        if self._keeps and loader.batch_size is not None:
            part = part_of(loader.batch_size, rank, num_replicas)
            dataset.keep(part.start, part.stop, loader.batch_size)
        self._keeper: Any = None
        if training and _is_stateful(loader):
            self._keeper = self.loader
        elif training and _is_stateful(dataset) and loader.num_workers == 0:
            self._keeper = self.stream
        self.fingerprint = 0
        self._first: Any = None
        self._begin(0)

    def _begin(self, epoch: int, batches: int = 0, state: Any = None, stale: bool = False) -> None:
        self.epoch = epoch
        self.stream.epoch.fill_(epoch)
        self._waiting: Iterator[Any] | None = None
        # Batches of this epoch that were trained on, and that were read.
        self._trained = self._read = batches
        self._totals: dict[int, int] = {}
        # Where the source stood before each batch, and whether it has to be put there.
        self._states = {batches: state}
        self._is_stale = stale
        self._has_ended = False

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def sampler(self) -> "StreamLoader":
        """Lightning announces a new epoch to it.

        No attribute: who refers to itself waits for the garbage collector, which ends queues before
        the worker processes that are told by them to stop, and then waits for each of these.
        """
        return self

    def __len__(self) -> int:
        """Global batches in an epoch, where the data set says how many samples it has."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yields from the first batch that is not yet consumed."""
        reading, self._waiting = self._waiting, None
        if reading is None:
            yield from self._batches()
        else:
            yield self._first
            yield from reading

    def first(self) -> Any:
        if self._first is None:
            reading = self._batches()
            self._first = next(reading, None)
            self._waiting = reading
        return self._first

    def _batches(self) -> Iterator[Any]:
        if not (self.repeats and self._has_ended):
            # What was read ahead and never trained on is read again.
            self._is_stale |= self._read != self._trained
            self._read = self._trained
        start, self._has_ended = self._read, False
        with drawing_from(self.seed, self.epoch):
            self._put_back()
            source = iter(self.loader)
        while True:
            with drawing_from(self.seed, self.epoch):
                read = next(source, END)
            if read is END:
                break
            batch, self._totals[self._read] = self._share_of(read, is_first=self._read == start)
            self._read += 1
            self._note_state()
            yield batch
        self._has_ended = True
        self._note_state()

    def _share_of(self, read: Any, is_first: bool) -> tuple[Any, int]:
        if isinstance(self.loader.collate_fn, Cut):
            batch, total, number = read
        else:
            name = type(self.dataset).__name__
            batch, total = cut_rows(read, self.rank, self.num_replicas, name)
            number = fingerprint(read) if is_first else 0
        if is_first:
            self._first, self.fingerprint = batch, 0 if self._keeps else number
        return batch, total

    def _note_state(self) -> None:
        if self._keeper is not None:
            self._states[self._read] = self._keeper.state_dict()

    def _put_back(self) -> None:
        if self._is_stale and self._states.get(self._trained) is not None:
            self._keeper.load_state_dict(self._states[self._trained])
        elif self._states.get(self._read) is None:
            self._note_state()
        self._is_stale = False

    def share(self, batch_idx: int) -> Share:
        return share_of(self._totals.get(batch_idx, 0), self.rank, self.num_replicas)

    def consume(self, batch_idx: int) -> int:
        is_new, self._trained = batch_idx >= self._trained, max(self._trained, batch_idx + 1)
        for number in [number for number in self._states if number < self._trained]:
            del self._states[number]
        for number in [number for number in self._totals if number < batch_idx]:
            del self._totals[number]
        return self._totals.get(batch_idx, 0) if is_new else 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this at the start of each epoch."""
        if epoch != self.epoch:
            is_stale = self._is_stale or self._read != self._trained
            self._begin(epoch, 0, self._states.get(self._trained), is_stale)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands: independent of rank and world size."""
        is_over = self._has_ended and self._read == self._trained
        place = {"seed": self.seed, "epoch": self.epoch, "batches": self._trained}
        stood = {"kept_by": self._kept_by(), "source": self._states.get(self._trained)}
        return place | {"is_over": int(is_over)} | stood

    def _kept_by(self) -> str:
        return f"{type(self._keeper).__name__} with {self.loader.num_workers} workers"

    def load_state_dict(self, state: dict[str, Any], is_inside: bool = False) -> None:
        """Go on where another run stopped.

        Raises:
            ValueError: If that is inside an epoch, and nobody knows where the stream stood.
        """
        source, batches = state["source"], state["batches"]
        if source is not None and self._kept_by() != state["kept_by"]:
            source = None
        if is_inside and batches and source is None:
            raise ValueError(
                f"{type(self.dataset).__name__} cannot be put where it stood; "
                "give it state_dict and load_state_dict and read it with num_workers=0, "
                "use torchdata's StatefulDataLoader"
            )
        self.seed = state["seed"]
        vars(self.stream).update(seed=self.seed)
        epoch = state["epoch"]
        if not is_inside and state["is_over"]:
            epoch, batches = epoch + 1, 0
        self._begin(epoch, batches, source, stale=source is not None)


def _is_stateful(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
