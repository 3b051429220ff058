"""Turns the DataLoader that a user wrote into this rank's part of it."""

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from ..errors import UserError
from .sampler import GlobalBatchSampler
from .seeding import DrawnBySample


class ShardedLoader(DataLoader[Any]):
    """A DataLoader over a `GlobalBatchSampler` that can be saved in the middle of an epoch."""

    batch_sampler: GlobalBatchSampler

    def state_dict(self) -> dict[str, int]:
        """Position in the epoch. Lightning stores it in the checkpoint."""
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a stored position."""
        self.batch_sampler.load_state_dict(state)


def shard(
    loader: DataLoader[Any], *, rank: int, num_replicas: int, seed: int, training: bool
) -> DataLoader[Any]:
    """Rebuild an ordinary DataLoader so that it yields one rank's share of each global batch.

    Everything but the choice of indices is kept. A loader that decides by itself what to yield (a
    sampler of its own, an iterable data set) is left as it is when there is one data-parallel rank.

    Raises:
        UserError: If such a loader would have to be shared between ranks.
    """
    # Where Lightning predicts it puts a wrapper around it, to see what it yields.
    batches: Any = getattr(loader.batch_sampler, "_batch_sampler", loader.batch_sampler)
    ordinary = (
        type(loader) is DataLoader
        and not isinstance(loader.dataset, IterableDataset)
        and type(batches) is BatchSampler
        and isinstance(batches.sampler, RandomSampler | SequentialSampler)
    )
    if not ordinary:
        if num_replicas == 1:
            return loader
        raise UserError(
            f"strategy: a {type(loader).__name__} with its own sampler or an iterable data set "
            f"cannot be shared by {num_replicas} ranks; return a plain "
            "DataLoader(dataset, batch_size=..., shuffle=...), or use strategy=single"
        )
    num_samples = len(loader.dataset)  # type: ignore[arg-type]
    if not training and num_samples < num_replicas:
        raise UserError(
            f"trainer.devices: {num_samples} samples cannot be shared by {num_replicas} ranks; "
            f"use at most {num_samples}"
        )
    sampler = GlobalBatchSampler(
        num_samples,
        batches.batch_size,
        shuffle=isinstance(batches.sampler, RandomSampler),
        seed=seed,
        rank=rank,
        num_replicas=num_replicas,
        drop_last=batches.drop_last,
        merge_tail=not training,
    )
    dataset = loader.dataset
    if training and not hasattr(dataset, "__getitems__"):
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
