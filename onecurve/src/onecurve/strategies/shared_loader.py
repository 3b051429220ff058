"""What a loader is that gives every rank its share of each global batch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning.pytorch.utilities.combined_loader import CombinedLoader


class Share(NamedTuple):
    """One rank's part of one global batch, as positions in the epoch's order or in the batch."""

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


class SharedLoader(ABC):
    """Yields a rank's part of each global batch, and knows which part that is.

    Batches are numbered from 0 in every epoch, on through several passes over the data.

    Attributes:
        num_replicas: Number of ranks that see different samples.
        epoch: The epoch that it is in.
        repeats: Whether it starts again beside a longer loader.
    """

    num_replicas: int
    epoch: int
    repeats: bool = False

    @abstractmethod
    def share(self, batch_idx: int) -> Share:
        """This rank's part of a global batch; of 0 samples out of 0 if there was none."""

    def joined(self, batch_idx: int) -> list[tuple[int, int]]:
        """The global batches that a batch was joined from: their numbers and their samples."""
        return [(batch_idx, self.share(batch_idx).total)]

    @abstractmethod
    def consume(self, batch_idx: int) -> int:
        """Note that a global batch was trained on, however often.

        Returns:
            Its samples, the first time; 0 when it is told again.
        """

    @abstractmethod
    def first(self) -> Any:
        """The first batch that it will yield; nothing is consumed."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch, the same on every rank. Lightning stores it in the checkpoint."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], is_inside: bool = False) -> None:
        """Go on from a stored position, at any number of ranks.

        Args:
            state: What `state_dict` returned.
            is_inside: Whether the epoch of that position goes on, and does not end there.

        Raises:
            ValueError: If that cannot be. The message says why, and what else there is.
        """


def let_repeat(combined: CombinedLoader) -> None:
    """Tell loaders beside a longer one that they start again, where they do."""
    for loader in combined.flattened:
        if isinstance(loader, SharedLoader):
            is_alone = len(combined.flattened) == 1
            loader.repeats = combined._mode == "max_size_cycle" and not is_alone


def shared_in_step(
    combined: CombinedLoader, batch_idx: int, dataloader_idx: int = 0
) -> list[SharedLoader]:
    """The loaders of which a step has a batch; none if one of them is not shared out."""
    loaders: list[Any] = combined.flattened
    if combined._mode == "sequential":
        loaders = loaders[dataloader_idx : dataloader_idx + 1]
    if not all(isinstance(loader, SharedLoader) for loader in loaders):
        return []
    return [loader for loader in loaders if loader.share(batch_idx).total]
