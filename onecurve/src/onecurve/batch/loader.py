"""Gives a rank its share of every batch of a user's DataLoader.

Exact: global batch b holds the samples of the b-th batch that the plain loader would yield. Every
rank iterates the loader's own batch sampler lazily, from the same generator state, and keeps the
indices of its share. So any sampler works, even an infinite one.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.data import sized_len
from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import (
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
from .position import END
from .random import Draws, RankStream
from .share import (
    Proxy,
    SharedLoader,
    TrackedLoader,
    rows_of_rank,
    slice_of_rank,
    unwrapped,
)
from .stream import StreamLoader, fingerprint, is_stateful


class RankLoader(SharedLoader):
    """A rank's share of the batches of a `DataLoader` over a map-style data set.

    Args beside those of `SharedLoader`:
        stream: This rank's random number streams.
        number: The number of this loader in the run, to seed it differently from the others.
    """

    _epoch: int = 0
    _kept: DataLoader[Any] | None = None

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
        super().__init__(loader, rank, num_replicas, training)
        vars(self).update(stream=stream, number=number)
        vars(self).update(_indices=self._own_indices())

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
        super().begin(epoch)
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        if not self.training:
            self.begin(self._epoch)
        start = self.passes.next
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
        if loader.num_workers and (self.num_replicas > 1 or self.keeps_workers):
            if not self.keeps_workers:
                # Draw the common seed as a plain loader does, then seed this rank's workers by
                # its own.
                iter(DataLoader(range(1), generator=loader.generator))  # type: ignore[arg-type]
            with self.stream.of_rank(Draws.WORKERS, self._epoch, self.number):
                source.generator = torch.Generator().manual_seed(torch.initial_seed())
        if loader.persistent_workers:
            self._kept = source
        return source

    def _shares(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        here = self.loader.num_workers == 0
        for number in count(start):
            position = self._epoch, number, self.number
            with self.stream.of_rank(Draws.FETCH, *position) if here else nullcontext():
                batch = next(batches, END)
            if batch is END:
                self.passes.next = number
                return
            yield batch

    def _rows(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        name = type(self.loader.dataset).__name__
        for number, batch in enumerate(batches, start):
            rows, self._totals[number] = rows_of_rank(batch, self.rank, self.num_replicas, name)
            yield rows


class CommonSampler(Proxy):
    """Wraps a sampler that all ranks iterate with the same random numbers."""

    _of = "inner"
    _count: Callable[[Any], int] | None = None

    def __init__(self, inner: Any, loader: RankLoader) -> None:
        self.inner = inner
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        loader = self.loader
        with loader.stream.common():
            keeps = loader.num_workers == 0 and sized_len(self.inner) is not None
            return self._drawn(loader.passes.over(self.inner, self._count, keeps))

    def _drawn(self, batches: Iterator[Any]) -> Iterator[Any]:
        loader = self.loader
        while True:
            with loader.stream.common():
                indices: Any = next(batches, END)
            if indices is END:
                return
            if loader.fingerprint is None:
                loader.fingerprint = fingerprint(indices)
            yield indices


class RankIndices(CommonSampler):
    """Wraps a batch sampler, and yields this rank's indices of each batch."""

    @staticmethod
    def _count(indices: Any) -> int:
        return len(list(indices))

    def __iter__(self) -> Iterator[list[Any]]:
        return self._of_rank(super().__iter__(), self.loader.passes.next)

    def _of_rank(self, batches: Iterator[Any], start: int) -> Iterator[list[Any]]:
        loader = self.loader
        for number, batch in enumerate(batches, start):
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


class UnsharedLoader(TrackedLoader):
    """Wraps a loader that has no indices to divide: every rank gets all of its batches."""

    def __iter__(self) -> Iterator[Any]:
        if not self.training:
            self.begin(0)
        # Made at once, not lazily: it may draw.
        batches = self.passes.over(self.loader, keeps=sized_len(self.loader) is not None)
        return self._numbered(batches, self.passes.next)

    def _numbered(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        for number in count(start):
            if (batch := next(batches, END)) is END:
                self.passes.next = number
                return
            if self.fingerprint is None:
                self.fingerprint = fingerprint(batch)
            self._totals[number] = 1
            yield batch

    def trained(self, batch_idx: int) -> None:
        super().trained(batch_idx)
        self._totals.pop(batch_idx - 1, None)

    def position(self) -> dict[str, Any] | None:
        return None if is_stateful(self.loader) else super().position()

    def resume(self, position: dict[str, Any]) -> str | None:
        super().resume(position)
        return self._read_again(type(self.loader).__name__)


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


def undistributed(sampler: DistributedSampler[Any]) -> Any:
    """What a DistributedSampler would be in one process: PyTorch's own, or one of a single rank."""
    if type(sampler) is DistributedSampler:
        return (RandomSampler if sampler.shuffle else SequentialSampler)(sampler.dataset)  # type: ignore[arg-type]
    full, options = copy(sampler), (sampler.shuffle, sampler.seed, sampler.drop_last)
    DistributedSampler.__init__(full, sampler.dataset, 1, 0, *options)
    return full


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


def shared_loader(
    loader: Any, rank: int, size: int, stream: RankStream, number: int, training: bool
) -> Any:
    """Wrap a DataLoader so that it yields a rank's share; every rank gets all of any other."""
    loader = unwrapped(loader)  # in a CombinedLoader that an earlier fit was given
    if not isinstance(loader, DataLoader):
        return UnsharedLoader(loader, training)
    if int(os.environ.get("PL_SEED_WORKERS", 0)) and loader.worker_init_fn is None:
        # Lightning would use the global rank (`seed_everything(workers=True)`), so ranks with the
        # same samples would augment them differently. Every rank reads a stream as a whole.
        seeds_of = 0 if is_stream(loader) else rank
        loader.worker_init_fn = partial(pl_worker_init_function, rank=seeds_of)
    if is_stream(loader):
        return StreamLoader(loader, rank=rank, num_replicas=size, training=training)
    reject_shared(loader, size)
    if dist.is_initialized() and dist.get_world_size() > 1:
        undistribute(loader)
    if not has_indices(loader):
        return UnsharedLoader(loader, training)
    return RankLoader(
        loader,
        rank=rank,
        num_replicas=size,
        stream=stream,
        number=number,
        training=training,
    )
