"""Turns the DataLoader that a user wrote into this rank's part of it."""

from collections.abc import Iterable, Sized
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from ..errors import UserError
from .batches import Own, Permuted
from .drawn import DrawnBySample
from .sampler import GlobalBatchSampler
from .shared_loader import Share, SharedLoader
from .stream import StreamLoader


class ShardedLoader(DataLoader[Any], SharedLoader):
    """A DataLoader over a `GlobalBatchSampler`."""

    batch_sampler: GlobalBatchSampler

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        return self.batch_sampler.num_replicas

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self.batch_sampler.epoch

    @property
    def repeats(self) -> bool:
        return self.batch_sampler.repeats

    @repeats.setter
    def repeats(self, repeats: bool) -> None:
        self.batch_sampler.repeats = repeats

    def share(self, batch_idx: int) -> Share:
        return self.batch_sampler.share(batch_idx)

    def joined(self, batch_idx: int) -> list[tuple[int, int]]:
        return self.batch_sampler.joined(batch_idx)

    def consume(self, batch_idx: int) -> int:
        return self.batch_sampler.consume(batch_idx)

    def first(self) -> Any:
        # Its own iterator might start workers, which fetch ahead.
        indices = [next(iter(self.batch_sampler))]
        return next(
            iter(DataLoader(self.dataset, batch_sampler=indices, collate_fn=self.collate_fn))
        )

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any], is_inside: bool = False) -> None:
        self.batch_sampler.load_state_dict(state, is_inside)


def shard(
    loader: DataLoader[Any],
    *,
    rank: int,
    num_replicas: int,
    seed: int,
    training: bool,
    limit: float = 1.0,
) -> DataLoader[Any] | StreamLoader:
    """Rebuild an ordinary DataLoader so that it yields one rank's share of each global batch.

    Everything but the choice of indices is kept. Without a sampler of its own, its order is ours;
    what such a sampler yields is drawn alike on all ranks. Of a stream, see `stream`. A loader that
    decides by itself what to yield (a class of its own) is left as it is when there is one
    data-parallel rank.

    Args:
        loader: What the user wrote.
        rank: Coordinate of this rank among the ranks that see different samples.
        num_replicas: Number of those ranks.
        seed: Seed of the run.
        training: Whether it is for training.
        limit: Lightning's limit of batches: a number, or a part of all.

    Raises:
        UserError: If a loader would have to be shared between ranks and cannot be.
    """
    # Where Lightning predicts it puts a wrapper around it, to see what it yields.
    batches: Any = getattr(loader.batch_sampler, "_batch_sampler", loader.batch_sampler)
    if is_stream(loader):
        return StreamLoader(
            loader, rank=rank, num_replicas=num_replicas, seed=seed, training=training
        )
    refuse_shared(loader, batches, num_replicas)
    if not can_be_shared(loader, batches):
        return loader
    source = global_batches(loader, batches)
    num_samples = len(source.epoch(seed, 0).order) if not training else 0
    if not training and num_samples < num_replicas:
        raise UserError(
            f"trainer.devices: {num_samples} samples cannot be shared by {num_replicas} ranks; "
            f"use at most {num_samples}"
        )
    count = limit if isinstance(limit, int) else int(len(source) * limit)
    sampler = GlobalBatchSampler(
        source,
        seed=seed,
        rank=rank,
        num_replicas=num_replicas,
        # Where Lightning leaves before the end, a merged batch would bring in what it leaves out.
        merge=not training and count >= len(source),
    )
    dataset = loader.dataset
    if training and not takes_batches(dataset):
        dataset = DrawnBySample(dataset)
    return ShardedLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def is_ordinary(loader: DataLoader[Any]) -> bool:
    """Whether a loader is PyTorch's, or torchdata's, which adds a position to it."""
    kind = type(loader)
    return kind is DataLoader or kind.__module__.startswith("torchdata.stateful_dataloader")


def is_stream(loader: DataLoader[Any]) -> bool:
    """Whether a loader reads samples, or batches, one after the other."""
    # A pipe of torch.utils.data shares itself out among processes.
    has_stream = isinstance(loader.dataset, IterableDataset)
    return is_ordinary(loader) and has_stream and not isinstance(loader.dataset, IterDataPipe)


def can_be_shared(loader: DataLoader[Any], batches: Any) -> bool:
    """Whether all ranks can tell from a loader which samples make up each batch."""
    return (
        is_ordinary(loader)
        and not isinstance(loader.dataset, IterableDataset)
        and isinstance(batches, Iterable)
        and isinstance(batches, Sized)
        and isinstance(getattr(batches, "sampler", batches), Sized)
    )


def refuse_shared(loader: DataLoader[Any], batches: Any, num_replicas: int) -> None:
    """Refuse what ranks would have to share and cannot.

    Raises:
        UserError: For a loader that decides by itself what to yield, and for a sampler that shares
            samples out, which the strategy does.
    """
    if num_replicas == 1:
        return
    if isinstance(getattr(batches, "sampler", None), DistributedSampler):
        raise UserError(
            "strategy: the loader has a DistributedSampler, and samples are shared out by the "
            "strategy; leave it out: DataLoader(dataset, batch_size=..., shuffle=True)"
        )
    if not can_be_shared(loader, batches):
        kind = type(loader.dataset if is_ordinary(loader) else loader).__name__
        raise UserError(
            f"strategy: {kind} decides by itself what it yields, which cannot be shared by "
            f"{num_replicas} ranks; return a DataLoader(dataset, ...) of a data set with "
            "__getitem__ and __len__, or use strategy=single, or pipeline without replicas"
        )


def global_batches(loader: DataLoader[Any], batches: Any) -> Permuted | Own:
    """Ours for a plain ``DataLoader(dataset, batch_size=..., shuffle=...)``, else the loader's."""
    order: Any = getattr(batches, "sampler", None)
    is_plain = type(batches) is BatchSampler and (
        type(order) is SequentialSampler
        or (type(order) is RandomSampler and not order.replacement and order._num_samples is None)
    )
    # A sampler may go over another data set than the loader's.
    if not is_plain or order.data_source is not loader.dataset:
        return Own(batches)
    return Permuted(
        len(loader.dataset),
        batches.batch_size,
        shuffle=type(order) is RandomSampler,
        drop_last=batches.drop_last,
    )


def takes_batches(dataset: Any) -> bool:
    """Whether a data set's own code makes a whole batch at once. A Subset's asks the one inside."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return hasattr(dataset, "__getitems__")
