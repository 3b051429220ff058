"""Which loader yields a rank's share of the batches of the one that a user wrote."""

from typing import Any

from torch.utils.data import DataLoader

from .loader import (
    RankLoader,
    has_indices,
    is_stream,
    refuse_shared,
    seed_workers,
    without_state,
)
from .random import RankStream
from .stream import StreamLoader


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

    Raises:
        UserError: If ranks would have to share what they cannot.
    """
    if not isinstance(loader, DataLoader):
        return loader
    seed_workers(loader, rank)
    if is_stream(loader):
        return StreamLoader(loader, rank=rank, num_replicas=size, training=training)
    refuse_shared(loader, size)
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
