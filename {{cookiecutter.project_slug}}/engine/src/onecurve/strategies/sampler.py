"""Which samples make up a training step, whatever the number of ranks.

A step is a *global batch*: a slice of an epoch's order, which depends on (seed, epoch) alone. Each
data-parallel rank takes its share of the slice. So a change of strategy or of world size changes
who computes, never what is computed.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.utils.data import Sampler

from .seeding import Indices


class Share(NamedTuple):
    """One rank's part of one global batch, as positions in the epoch's order."""

    start: int
    stop: int
    total: int
    """Samples in the whole global batch."""

    @property
    def size(self) -> int:
        """Samples of this rank; 0 where the batch is smaller than the number of ranks."""
        return self.stop - self.start


def part(total: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Which samples of a global batch a rank has: sizes differ by one, the lower ranks have more.

    Returns:
        The first one, and the one after the last.
    """
    quotient, remainder = divmod(total, num_ranks)
    start = rank * quotient + min(rank, remainder)
    return start, start + quotient + (rank < remainder)


class Epoch(NamedTuple):
    """One epoch's samples, cut into global batches."""

    order: Any
    """Indices of all samples, in the order in which they are seen: a tensor, or a sequence."""
    stops: Sequence[int]
    """For each global batch, the position in the order at which it ends."""


class Batches(Protocol):
    """Where the global batches come from: `batches.Permuted`, `batches.Own`."""

    def __len__(self) -> int:
        """Global batches in an epoch."""

    def epoch(self, seed: int, number: int) -> Epoch:
        """The same on every rank."""


class GlobalBatchSampler(Sampler[list[int]]):
    """Yields one rank's part of each global batch.

    Args:
        batches: Where the global batches come from.
        seed: Seed of the run.
        rank: Coordinate of this rank among the ranks that see different samples.
        num_replicas: Number of those ranks.
        merge: Join a batch that has fewer samples than there are ranks to the one before it. For
            evaluation, where every rank must have something in every batch and no sample may
            count twice.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        seed: int = 0,
        rank: int = 0,
        num_replicas: int = 1,
        merge: bool = False,
    ) -> None:
        self.batches = batches
        self.seed = seed
        self.rank = rank
        self.num_replicas = num_replicas
        self.merge = merge
        self.epoch = 0
        self.consumed = 0
        # Lightning announces a new epoch to `loader.batch_sampler.sampler`.
        self.sampler = self
        self._made: tuple[tuple[int, int], Epoch] | None = None

    def __len__(self) -> int:
        """Global batches in an epoch; the same on every rank."""
        return len(self._of_epoch().stops) if self.merge else len(self.batches)

    def _of_epoch(self) -> Epoch:
        key = (self.seed, self.epoch)
        if self._made is None or self._made[0] != key:
            epoch = self.batches.epoch(*key)
            if self.merge:
                epoch = Epoch(epoch.order, merged(epoch.stops, self.num_replicas))
            self._made = (key, epoch)
        return self._made[1]

    def share(self, batch_idx: int) -> Share:
        """This rank's part of a global batch.

        Sizes differ between ranks by one at most; the lower ranks take the remainder.
        """
        stops = self._of_epoch().stops
        first = stops[batch_idx - 1] if batch_idx else 0
        total = stops[batch_idx] - first
        start, stop = part(total, self.rank, self.num_replicas)
        return Share(first + start, first + stop, total)

    def joined(self, batch_idx: int) -> list[tuple[int, int]]:
        """The global batches that a batch was joined from: their numbers and their samples."""
        stops = self._of_epoch().stops
        first = stops[batch_idx - 1] if batch_idx else 0
        if not self.merge:
            return [(batch_idx, stops[batch_idx] - first)]
        original = [0, *self.batches.epoch(self.seed, self.epoch).stops]
        return [
            (number, stop - start)
            for number, (start, stop) in enumerate(pairwise(original))
            if first < stop <= stops[batch_idx]
        ]

    def __iter__(self) -> Iterator[list[int]]:
        """Yields index lists from the first batch that is not yet consumed."""
        order = self._of_epoch().order
        for batch_idx in range(self.first_batch(), len(self._of_epoch().stops)):
            start, stop, _ = self.share(batch_idx)
            if start == stop:
                # A rank without a share still takes part in the step: its sample weighs nothing.
                start, stop = stop - 1, stop
            indices = order[start:stop]
            indices = indices.tolist() if isinstance(indices, Tensor) else indices
            yield Indices(indices, self.seed, self.epoch)

    def consume(self, batch_idx: int) -> int:
        """Note that a global batch was trained on, however often.

        Returns:
            Its samples, the first time; 0 when it is told again.
        """
        before, self.consumed = self.consumed, self._of_epoch().stops[batch_idx]
        return max(self.consumed - before, 0)

    def first_batch(self) -> int:
        """Index of the first global batch that was not consumed before a resume."""
        return sum(stop <= self.consumed for stop in self._of_epoch().stops)

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this at the start of each epoch."""
        if epoch != self.epoch:
            self.epoch, self.consumed = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Where the epoch stands, counted in samples: independent of rank and world size."""
        is_over = self.first_batch() == len(self._of_epoch().stops)
        place = {"seed": self.seed, "epoch": self.epoch, "consumed": self.consumed}
        return place | {"is_over": int(is_over)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another run stopped, in the same order of samples.

        Raises:
            ValueError: If no global batch ends there: batches are of another size now.
        """
        self.seed, self.epoch, self.consumed = state["seed"], state["epoch"], state["consumed"]
        if state.get("is_over") or self.first_batch() == len(self._of_epoch().stops):
            self.epoch, self.consumed = self.epoch + 1, 0
        elif self.consumed not in (0, *self._of_epoch().stops):
            raise ValueError(f"no batch ends at sample {self.consumed}")


def merged(stops: Sequence[int], num_replicas: int) -> list[int]:
    """Join each batch of fewer samples than ranks to the one before it.

    Raises:
        ValueError: If there are fewer samples than ranks.
    """
    if stops[-1] < num_replicas:
        raise ValueError(f"{stops[-1]} samples cannot be shared by {num_replicas} ranks")
    joined: list[int] = []
    for stop in stops:
        last = joined[-1] if joined else 0
        before = joined[-2] if len(joined) > 1 else 0
        if joined and (stop - last < num_replicas or last - before < num_replicas):
            joined[-1] = stop
        else:
            joined.append(stop)
    return joined
