"""Gives a rank its share of every batch of the DataLoader that a user wrote.

Exact: global batch b holds the samples of the b-th batch that the loader yields by itself. Every
rank walks the loader's own batch sampler, lazily and from the same generator state, and keeps the
indices of its share; so any sampler will do, also one without an end.
"""

import os
from collections.abc import Iterator, Sized
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from itertools import count
from typing import Any

import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
)

from ..compat.of_lightning import IndexBatchSamplerWrapper, sampler_seen
from ..compat.of_torch import iterator_of
from ..errors import UserError
from .proxy import ResumedSampler
from .random import Draws, RankStream
from .rows import cut_rows
from .share import SharedLoader, part_of
from .stream import StreamLoader

END = object()


class RankLoader(SharedLoader):
    """A rank's share of what a `DataLoader` over a data set with indices yields.

    Args:
        loader: What the user wrote.
        rank: Coordinate of this rank among the ranks that see different samples.
        num_replicas: Number of those ranks.
        stream: What this rank draws.
        number: Tells it from other loaders of the run.
        training: Whether passes beside a longer loader go on counting batches.
    """

    _epoch: int
    _start: int
    _ended_at: int | None
    _walked: Iterator[Any] | None
    _kept: DataLoader[Any] | None

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        rank: int,
        num_replicas: int,
        stream: RankStream,
        number: int = 0,
        training: bool = False,
    ) -> None:
        super().__init__(loader, rank, num_replicas)
        vars(self).update(stream=stream, number=number, training=training, _kept=None)
        vars(self).update(_indices=self._own_indices())
        self.begin(0)

    def _own_indices(self) -> Any:
        """What stands for the loader's batch sampler; or its sampler, where it has no other."""
        batches: Any = self.loader.batch_sampler
        if batches is None:
            return CommonSampler(self.loader.sampler, self.stream)
        if isinstance(batches, IndexBatchSamplerWrapper):
            return SeenIndices(RankIndices(sampler_seen(batches), self))
        return RankIndices(batches, self)

    @property
    def batch_sampler(self) -> Any:
        """The loader's own; in predictions one that tells which samples this rank has seen."""
        predicts = isinstance(self._indices, IndexBatchSamplerWrapper)
        return self._indices if predicts else self.loader.batch_sampler

    @property
    def _iterator(self) -> Any:
        """Lightning ends the worker processes of what it finds here."""
        return None if self._kept is None else iterator_of(self._kept)

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        self._kept = None

    def begin(self, epoch: int) -> None:
        vars(self).update(_epoch=epoch, _start=0, _ended_at=None, _walked=None, _totals={})

    def resume(self, batches: Iterator[Any], number: int) -> None:
        """Go on, in the pass that begins next, with what is left of an epoch."""
        self._walked, self._start = batches, number

    def __iter__(self) -> Iterator[Any]:
        if not self.training:
            self._totals.clear()
        start = self._ended_at if self.training and self._ended_at is not None else self._start
        self._ended_at = None
        walked, self._walked = self._walked, None
        indices = getattr(self._indices, "_batch_sampler", self._indices)
        indices.start, indices.left = start, walked
        # A loader makes its iterator, and the seed of its workers, at once.
        batches: Iterator[Any] = iter(self._kept or self._source())
        if self.loader.batch_sampler is None:
            batches = self._rows(batches, start)
        return self._shares(batches, start)

    def _source(self) -> DataLoader[Any]:
        """The user's loader over this rank's indices."""
        loader = self.loader
        source: DataLoader[Any] = copy(loader)
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        vars(source).update({name: self._indices, "_iterator": None})
        if loader.num_workers and self.num_replicas > 1:
            # Ranks read other samples, by another seed of the workers than the one drawn by all.
            draw_base_seed(loader)
            with self.stream.own(Draws.WORKERS, self._epoch, self.number):
                source.generator = torch.Generator().manual_seed(torch.initial_seed())
        if loader.persistent_workers:
            self._kept = source
        return source

    def _shares(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        here = self.loader.num_workers == 0
        for number in count(start):
            place = self._epoch, number, self.number
            with self.stream.own(Draws.FETCH, *place) if here else nullcontext():
                batch = next(batches, END)
            if batch is END:
                self._ended_at = number
                return
            yield batch

    def _rows(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        """This rank's rows of batches that the data set makes as a whole (``batch_size=None``)."""
        name = type(self.loader.dataset).__name__
        for number, batch in enumerate(batches, start):
            rows, self._totals[number] = cut_rows(batch, self.rank, self.num_replicas, name)
            yield rows

    def first(self) -> Any:
        """The first batch that it will yield; nothing is consumed."""
        loader = self.loader
        if loader.batch_sampler is None:
            of_one = [next(iter(loader.sampler))]
            read = DataLoader(loader.dataset, None, sampler=of_one, collate_fn=loader.collate_fn)
            return cut_rows(next(iter(read)), self.rank, self.num_replicas, "")[0]
        indices = list(next(iter(loader.batch_sampler)))
        own = [indices[part_of(len(indices), self.rank, self.num_replicas)]]
        read = DataLoader(loader.dataset, batch_sampler=own, collate_fn=loader.collate_fn)
        return next(iter(read))


class CommonSampler(ResumedSampler):
    """Stands for a sampler, which all ranks walk alike.

    Attributes:
        start: The number of the first batch of the next pass.
    """

    start: int = 0

    def __init__(self, inner: Any, stream: RankStream) -> None:
        super().__init__(inner)
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        walked = super().__iter__()
        while True:
            with self.stream.common():
                indices: Any = next(walked, END)
            if indices is END:
                return
            yield indices


class RankIndices(CommonSampler):
    """Stands for a batch sampler, and yields this rank's indices of each batch."""

    def __init__(self, inner: Any, loader: RankLoader) -> None:
        super().__init__(inner, loader.stream)
        self.loader = loader

    def __iter__(self) -> Iterator[list[Any]]:
        loader = self.loader
        for number, batch in enumerate(super().__iter__(), self.start):
            indices: list[Any] = list(batch)
            loader._totals[number] = len(indices)
            yield indices[part_of(len(indices), loader.rank, loader.num_replicas)]


class SeenIndices(IndexBatchSamplerWrapper):
    """Where Lightning reads which samples were predicted: of a rank, its own alone."""

    _batch_sampler: Any

    def __next__(self) -> list[int]:
        indices = super().__next__()
        loader = self._batch_sampler.loader
        if loader.rank >= loader._totals[max(loader._totals)]:  # this one is another rank's
            self.seen_batch_indices[-1] = []
        return indices


def draw_base_seed(loader: DataLoader[Any]) -> None:
    """Draw what a loader draws when its iterator is made, from where it draws it."""
    iter(DataLoader(range(1), generator=loader.generator))  # type: ignore[arg-type]


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators of a loader's own: what its order of samples may be drawn from."""
    batches = getattr(loader, "batch_sampler", None)
    places = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = [getattr(place, "generator", None) for place in places]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


@contextmanager
def kept_generators(loader: Any) -> Iterator[None]:
    """Leave a loader's own generators where they were."""
    before = [(generator, generator.get_state()) for generator in generators_of(loader)]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)


def is_ordinary(loader: Any) -> bool:
    """Whether a loader yields what its samplers say: PyTorch's, torchdata's, or a kind of these."""
    kind = type(loader)
    if kind.__module__.startswith("torchdata.stateful_dataloader"):
        return True
    return kind.__iter__ is DataLoader.__iter__ and kind.__len__ is DataLoader.__len__


def is_stream(loader: DataLoader[Any]) -> bool:
    """Whether a loader reads samples, or batches, one after the other."""
    # A pipe of torch.utils.data shares itself out among processes.
    has_stream = isinstance(loader.dataset, IterableDataset)
    return is_ordinary(loader) and has_stream and not isinstance(loader.dataset, IterDataPipe)


def has_indices(loader: DataLoader[Any]) -> bool:
    """Whether all ranks can tell from a loader which samples make up each batch."""
    return is_ordinary(loader) and not isinstance(loader.dataset, IterableDataset)


def size_of_batch(loader: Any, batch_idx: int) -> int | None:
    """Samples of a whole batch, as far as a loader's samplers say; None where they do not."""
    if isinstance(loader, SharedLoader):
        return loader.share(batch_idx).total
    batches = getattr(loader, "batch_sampler", None)
    if type(batches) is not BatchSampler or not isinstance(batches.sampler, Sized):
        return None
    left = len(batches.sampler) - batch_idx % len(batches) * batches.batch_size
    return min(batches.batch_size, left)


OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
)


def without_state(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Torchdata's StatefulDataLoader over indices as PyTorch's: its position is that of a rank."""
    if type(loader).__iter__ is DataLoader.__iter__:
        return loader
    options = {name: getattr(loader, name) for name in OPTIONS}
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, None, sampler=loader.sampler, **options)
    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **options)


def seed_workers(loader: DataLoader[Any], rank: int) -> None:
    """Seed a loader's workers, where Lightning is asked to, by the rank among shares of a batch.

    Lightning takes the rank in the world: ranks that share samples would augment them otherwise.
    """
    if int(os.environ.get("PL_SEED_WORKERS", 0)) and loader.worker_init_fn is None:
        loader.worker_init_fn = partial(pl_worker_init_function, rank=rank)


def reject_shared(loader: DataLoader[Any], num_replicas: int) -> None:
    """Reject what ranks would have to share and cannot."""
    if num_replicas == 1:
        return
    batches: Any = loader.batch_sampler
    if isinstance(getattr(batches, "sampler", loader.sampler), DistributedSampler):
        raise UserError(
            "strategy: the loader has a DistributedSampler, and samples are shared out by the "
            "strategy; leave it out: DataLoader(dataset, batch_size=..., shuffle=True)"
        )
    if not has_indices(loader):
        kind = type(loader.dataset if is_ordinary(loader) else loader).__name__
        raise UserError(
            f"strategy: {kind} decides by itself what it yields, which cannot be shared by "
            f"{num_replicas} ranks; return a DataLoader(dataset, ...) of a data set with "
            "__getitem__ and __len__, or use strategy=single, or pipeline without replicas"
        )


def shared_loader(
    loader: Any, rank: int, size: int, stream: RankStream, number: int, training: bool
) -> Any:
    """What yields a rank's share of every batch; the loader itself where it is no DataLoader.

    Args:
        loader: What the user wrote.
        rank: Which share.
        size: How many shares there are.
        stream: What this rank draws.
        number: Tells the loader from others of the run.
        training: Whether passes beside a longer loader go on counting batches.
    """
    if not isinstance(loader, DataLoader):
        return loader
    seed_workers(loader, rank)
    if is_stream(loader):
        return StreamLoader(loader, rank=rank, num_replicas=size, training=training)
    reject_shared(loader, size)
    if not has_indices(loader):
        return loader
    return RankLoader(
        without_state(loader),
        rank=rank,
        num_replicas=size,
        stream=stream,
        number=number,
        training=training,
    )
