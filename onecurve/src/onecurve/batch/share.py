"""A rank's part of each global batch, and what a loader is that yields it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning.pytorch.utilities.combined_loader import CombinedLoader

from ..compat.of_lightning import is_one_after_the_other
from .proxy import Proxy


class Share(NamedTuple):
    """One rank's part of one global batch, as positions in the batch."""

    start: int
    stop: int
    total: int
    """Samples in the whole global batch."""
    is_of_several: bool = False
    """Whether it is of the batches of several loaders, whose samples do not lie side by side."""

    @property
    def size(self) -> int:
        """Samples of this rank; 0 where the batch is smaller than the number of ranks."""
        return self.stop - self.start


def share_of(total: int, rank: int, num_replicas: int) -> Share:
    """A rank's part of a batch.

    Sizes differ between ranks by one at most; the lower ranks take the remainder.
    """
    quotient, remainder = divmod(total, num_replicas)
    start = rank * quotient + min(rank, remainder)
    return Share(start, start + quotient + (rank < remainder), total)


def part_of(total: int, rank: int, num_replicas: int) -> slice:
    """Which samples of a batch a rank computes with.

    A rank without a share takes part in the step all the same: its sample weighs nothing.
    """
    start, stop = share_of(total, rank, num_replicas)[:2]
    return slice(start, stop) if stop > start else slice(total - 1, total)


def together(shares: Sequence[Share]) -> Share:
    """What a rank has of the batches of several loaders, as one."""
    size, total = sum(share.size for share in shares), sum(share.total for share in shares)
    return shares[0] if len(shares) == 1 else Share(0, size, total, is_of_several=True)


def unlike(shares: Sequence[Share], num_replicas: int) -> str | None:
    """What to say of batches of several loaders that do not share out alike, if they do not."""
    if len(shares) == 1 or not any(share.total % num_replicas for share in shares):
        return None
    sizes = " and ".join(str(share.total) for share in shares)
    return (
        f"the loaders' batches of {sizes} samples do not share out alike on {num_replicas} ranks: "
        "a mean over all of them is exact, a sum of their means is not; use drop_last=True and "
        f"batch sizes that {num_replicas} divides"
    )


class SharedLoader(Proxy, ABC):
    """Stands for a loader that the user wrote, and yields a rank's part of each of its batches.

    Every attribute is the user's loader's, to read and to set. Batches are numbered from 0 in every
    epoch, on through several passes beside a longer loader.

    Args:
        loader: What the user wrote.
        rank: Coordinate of this rank among the ranks that see different samples.
        num_replicas: Number of those ranks.
    """

    _of = "loader"
    loader: Any
    rank: int
    num_replicas: int
    _totals: dict[int, int]

    def __init__(self, loader: Any, rank: int, num_replicas: int) -> None:
        vars(self).update(loader=loader, rank=rank, num_replicas=num_replicas, _totals={})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    def share(self, batch_idx: int) -> Share:
        """This rank's part of a global batch; of 0 samples out of 0 if there was none."""
        for number in [number for number in self._totals if number < batch_idx]:
            del self._totals[number]
        return share_of(self._totals.get(batch_idx, 0), self.rank, self.num_replicas)

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Number batches from 0 again: an epoch begins, or an evaluation."""

    def trained(self, batch_idx: int) -> None:
        """Hear that a global batch was trained on."""


def shared_in_step(
    combined: CombinedLoader, batch_idx: int, dataloader_idx: int = 0
) -> list[SharedLoader]:
    """The loaders of which a step has a batch; none if one of them is not shared out."""
    loaders: list[Any] = combined.flattened
    if is_one_after_the_other(combined):
        loaders = loaders[dataloader_idx : dataloader_idx + 1]
    if not all(isinstance(loader, SharedLoader) for loader in loaders):
        return []
    return [loader for loader in loaders if loader.share(batch_idx).total]
