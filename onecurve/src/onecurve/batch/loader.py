"""Gives a rank its share of every batch of a user's DataLoader.

Exact: global batch b holds the samples of the b-th batch that the plain loader would yield. Every
rank iterates the loader's own batch sampler lazily, from the same generator state, and keeps the
indices of its share. So any sampler works, even an infinite one.
"""

import os
from collections.abc import Iterator, Sized
from contextlib import nullcontext
from copy import copy
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    SequentialSampler,
)

from ..compat.of_lightning import IndexBatchSamplerWrapper, sampler_seen
from ..compat.of_torch import iterator_of
from ..errors import UserError, say
from .random import Draws, RankStream
from .share import Proxy, ResumedSampler, SharedLoader, rows_of_rank, slice_of_rank
from .stream import END, StreamLoader, fingerprint


class RankLoader(SharedLoader):
    """A rank's share of the batches of a `DataLoader` over a map-style data set.

    Args beside those of `SharedLoader`:
        stream: This rank's random number streams.
        number: The number of this loader in the run, to seed it differently from the others.
        training: Whether batch numbers continue when a longer loader makes this one start again.
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
        """The replacement of the loader's batch sampler, or of its sampler if it has none."""
        batches: Any = self.loader.batch_sampler
        if batches is None:
            return CommonSampler(self.loader.sampler, self)
        if isinstance(batches, IndexBatchSamplerWrapper):
            return SeenIndices(RankIndices(sampler_seen(batches), self))
        return RankIndices(batches, self)

    @property
    def batch_sampler(self) -> Any:
        """The loader's own; in predictions the one that records this rank's sample indices."""
        predicts = isinstance(self._indices, IndexBatchSamplerWrapper)
        return self._indices if predicts else self.loader.batch_sampler

    @property
    def _iterator(self) -> Any:
        """The iterator whose worker processes Lightning shuts down."""
        return None if self._kept is None else iterator_of(self._kept)

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        self._kept = None

    def begin(self, epoch: int) -> None:
        vars(self).update(_epoch=epoch, _start=0, _ended_at=None, _walked=None, _totals={})

    def resume(self, batches: Iterator[Any], number: int) -> None:
        """Make the next pass yield what is left of an epoch, from batch `number` on."""
        self._walked, self._start = batches, number

    def __iter__(self) -> Iterator[Any]:
        if not self.training:
            self._totals.clear()
        start = self._ended_at if self.training and self._ended_at is not None else self._start
        self._ended_at = None
        walked, self._walked = self._walked, None
        indices = getattr(self._indices, "_batch_sampler", self._indices)
        indices.start, indices.left = start, walked
        # The iterator is made at once, not lazily, because it draws the seed of the workers.
        batches: Iterator[Any] = iter(self._kept or self._source())
        if self.loader.batch_sampler is None:
            batches = self._rows(batches, start)
        return self._shares(batches, start)

    def _source(self) -> DataLoader[Any]:
        """A copy of the user's loader over this rank's indices."""
        loader = self.loader
        source: DataLoader[Any] = copy(loader)
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        vars(source).update({name: self._indices, "_iterator": None})
        if loader.num_workers and self.num_replicas > 1:
            # Draw the common seed as a plain loader does, then seed this rank's workers by its own.
            draw_base_seed(loader)
            with self.stream.of_rank(Draws.WORKERS, self._epoch, self.number):
                source.generator = torch.Generator().manual_seed(torch.initial_seed())
        if loader.persistent_workers:
            self._kept = source
        return source

    def _shares(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        here = self.loader.num_workers == 0
        for number in count(start):
            place = self._epoch, number, self.number
            with self.stream.of_rank(Draws.FETCH, *place) if here else nullcontext():
                batch = next(batches, END)
            if batch is END:
                self._ended_at = number
                return
            yield batch

    def _rows(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        name = type(self.loader.dataset).__name__
        for number, batch in enumerate(batches, start):
            rows, self._totals[number] = rows_of_rank(batch, self.rank, self.num_replicas, name)
            yield rows


class CommonSampler(ResumedSampler):
    """Wraps a sampler that all ranks iterate with the same random numbers.

    Attributes:
        start: The number of the first batch of the next pass.
    """

    start: int = 0

    def __init__(self, inner: Any, loader: RankLoader) -> None:
        super().__init__(inner)
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        walked = super().__iter__()
        while True:
            with self.loader.stream.common():
                indices: Any = next(walked, END)
            if indices is END:
                return
            if self.loader.fingerprint is None:
                self.loader.fingerprint = fingerprint(indices)
            yield indices


class RankIndices(CommonSampler):
    """Wraps a batch sampler, and yields this rank's indices of each batch."""

    def __iter__(self) -> Iterator[list[Any]]:
        loader = self.loader
        for number, batch in enumerate(super().__iter__(), self.start):
            indices: list[Any] = list(batch)
            loader._totals[number] = len(indices)
            yield indices[slice_of_rank(len(indices), loader.rank, loader.num_replicas)]


class SeenIndices(IndexBatchSamplerWrapper):
    """Tells Lightning which samples this rank has predicted: its own only."""

    _batch_sampler: Any

    def __next__(self) -> list[int]:
        indices = super().__next__()
        loader = self._batch_sampler.loader
        if loader.rank >= loader._totals[max(loader._totals)]:  # the sample is another rank's
            self.seen_batch_indices[-1] = []
        return indices


class UnsharedLoader(Proxy):
    """Wraps a loader that has no indices to divide: every rank gets all of its batches.

    Attributes:
        fingerprint: A checksum of the first batch, to compare ranks by.
        is_compared: Whether the ranks have compared it.
    """

    _of = "loader"
    fingerprint: int | None = None
    is_compared: bool = False

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        # Made at once, not lazily: it may draw.
        return self._compared(iter(self.loader))

    def _compared(self, batches: Iterator[Any]) -> Iterator[Any]:
        first = next(batches, END)
        if first is END:
            return
        self.fingerprint = fingerprint(first)
        yield first
        yield from batches


def draw_base_seed(loader: DataLoader[Any]) -> None:
    """Draw the number that a DataLoader draws when its iterator is made."""
    iter(DataLoader(range(1), generator=loader.generator))  # type: ignore[arg-type]


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators of a loader and its samplers, from which the order may be drawn."""
    batches = getattr(loader, "batch_sampler", None)
    places = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = [getattr(place, "generator", None) for place in places]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def is_ordinary(loader: Any) -> bool:
    """Whether a loader follows its samplers: PyTorch's, torchdata's, or a plain subclass."""
    kind = type(loader)
    if kind.__module__.startswith("torchdata.stateful_dataloader"):
        return True
    return kind.__iter__ is DataLoader.__iter__ and kind.__len__ is DataLoader.__len__


def is_stream(loader: DataLoader[Any]) -> bool:
    """Whether a loader reads an `IterableDataset`."""
    # Data pipes of torch.utils.data shard themselves.
    has_stream = isinstance(loader.dataset, IterableDataset)
    return is_ordinary(loader) and has_stream and not isinstance(loader.dataset, IterDataPipe)


def has_indices(loader: DataLoader[Any]) -> bool:
    """Whether a loader's batches are determined by indices that every rank can compute."""
    return is_ordinary(loader) and not isinstance(loader.dataset, IterableDataset)


def size_of_batch(loader: Any, batch_idx: int, starts_again: bool = True) -> int | None:
    """Samples of a global batch; None if the loader's samplers do not tell."""
    if isinstance(loader, SharedLoader):
        return loader.share(batch_idx).total
    batches = getattr(loader, "batch_sampler", None)
    if type(batches) is not BatchSampler or not isinstance(batches.sampler, Sized):
        return None
    if batch_idx >= len(batches) and not starts_again:
        return 0
    left = len(batches.sampler) - batch_idx % len(batches) * batches.batch_size
    return min(batches.batch_size, left)


OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
)


def without_state(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Replace torchdata's StatefulDataLoader over indices by a DataLoader.

    Its saved position would be that of one rank's share.
    """
    if type(loader).__iter__ is DataLoader.__iter__:
        return loader
    options = {name: getattr(loader, name) for name in OPTIONS}
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, None, sampler=loader.sampler, **options)
    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **options)


def undistributed(sampler: DistributedSampler[Any]) -> Any:
    """What a DistributedSampler would be in one process: PyTorch's own, or one of a single rank."""
    if type(sampler) is DistributedSampler:
        return (RandomSampler if sampler.shuffle else SequentialSampler)(sampler.dataset)  # type: ignore[arg-type]
    whole, options = copy(sampler), (sampler.shuffle, sampler.seed, sampler.drop_last)
    DistributedSampler.__init__(whole, sampler.dataset, 1, 0, *options)
    return whole


def undistribute(loader: DataLoader[Any]) -> None:
    """Replace a DistributedSampler, which libraries add by themselves where they see ranks."""
    replaced: dict[Any, Any] = {}
    places = ((loader, "batch_sampler"), (loader, "sampler"), (loader.batch_sampler, "sampler"))
    for holder, name in places:
        sampler = getattr(holder, name, None)
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            vars(holder)[name] = replaced.setdefault(sampler, undistributed(sampler))
    for sampler, now in replaced.items():
        if dist.get_rank() == 0:
            say(
                f"strategy: {type(sampler).__name__} of the loader is replaced by "
                f"{type(now).__name__} of all samples, because the strategy divides each batch "
                "among the ranks: the batch size is that of all ranks together"
            )


def reject_shared(loader: DataLoader[Any], num_replicas: int) -> None:
    """Reject loaders whose batches ranks cannot share."""
    if num_replicas > 1 and not has_indices(loader):
        kind = type(loader.dataset if is_ordinary(loader) else loader).__name__
        raise UserError(
            f"strategy: {kind} decides by itself what it yields, so {num_replicas} ranks cannot "
            "share its batches; return a DataLoader(dataset, ...) of a data set with "
            "__getitem__ and __len__, or use strategy=single, or pipeline without replicas"
        )


def _are_several(num_replicas: int) -> bool:
    return num_replicas > 1 or (dist.is_initialized() and dist.get_world_size() > 1)


def shared_loader(
    loader: Any, rank: int, size: int, stream: RankStream, number: int, training: bool
) -> Any:
    """Wrap a DataLoader so that it yields a rank's share; every rank gets all of any other."""
    if not isinstance(loader, DataLoader):
        return UnsharedLoader(loader) if _are_several(size) else loader
    if int(os.environ.get("PL_SEED_WORKERS", 0)) and loader.worker_init_fn is None:
        # Lightning would use the global rank (`seed_everything(workers=True)`), so ranks with the
        # same samples would augment them differently.
        loader.worker_init_fn = partial(pl_worker_init_function, rank=rank)
    if is_stream(loader):
        return StreamLoader(loader, rank=rank, num_replicas=size, training=training)
    reject_shared(loader, size)
    if _are_several(size):
        undistribute(loader)
    if not has_indices(loader):
        return UnsharedLoader(loader) if _are_several(size) else loader
    return RankLoader(
        without_state(loader),
        rank=rank,
        num_replicas=size,
        stream=stream,
        number=number,
        training=training,
    )
