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
from .shared_loader import Share, share_of

# Tells the passes over the data in an epoch from epochs.
PASS = 1_000_000


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

    Attributes:
        consumed: Samples that were trained on, of a pass over the data.
        passes: Passes that were over before it, in this epoch.
        repeats: Whether it starts again beside a longer loader.
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
        self.passes = 0
        # Lightning announces a new epoch to `loader.batch_sampler.sampler`.
        self.sampler = self
        self.repeats = False
        self._reading = 0
        self._has_ended = False
        self._made: dict[tuple[int, int], Epoch] = {}

    def __len__(self) -> int:
        """Global batches in an epoch; the same on every rank."""
        return len(self._of_pass(0).stops) if self.merge else len(self.batches)

    def _of_pass(self, number: int) -> Epoch:
        key = (self.seed, self._drawn_as(number))
        if key not in self._made:
            epoch = self.batches.epoch(*key)
            if self.merge:
                epoch = Epoch(epoch.order, merged(epoch.stops, self.num_replicas))
            # What was read before may still be asked for.
            self._made = {**dict([*self._made.items()][-1:]), key: epoch}
        return self._made[key]

    def _drawn_as(self, number: int) -> int:
        """The epoch whose random numbers a pass draws."""
        return self.epoch + number * PASS

    def share(self, batch_idx: int) -> Share:
        """This rank's part of a global batch; of 0 samples out of 0 if there is none."""
        if not self.repeats and batch_idx >= len(self):
            return Share(0, 0, 0)
        return self._share(*divmod(batch_idx, len(self)))

    def _share(self, number: int, batch_idx: int) -> Share:
        stops = self._of_pass(number).stops
        first = stops[batch_idx - 1] if batch_idx else 0
        start, stop, total = share_of(stops[batch_idx] - first, self.rank, self.num_replicas)[:3]
        return Share(first + start, first + stop, total)

    def joined(self, batch_idx: int) -> list[tuple[int, int]]:
        """The global batches that a batch was joined from: their numbers and their samples."""
        stops = self._of_pass(0).stops
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
        if self.repeats and self._has_ended and self.first_batch() >= len(self) - 1:
            self._reading += 1
        self._has_ended = False
        number = self._reading
        order, stops = self._of_pass(number)
        for batch_idx in range(self.first_batch() if number == self.passes else 0, len(stops)):
            start, stop = self._share(number, batch_idx)[:2]
            if start == stop:
                # A rank without a share still takes part in the step: its sample weighs nothing.
                start, stop = stop - 1, stop
            indices = order[start:stop]
            indices = indices.tolist() if isinstance(indices, Tensor) else indices
            yield Indices(indices, self.seed, self._drawn_as(number))
        self._has_ended = True

    def consume(self, batch_idx: int) -> int:
        """Note that a global batch was trained on, however often.

        Returns:
            Its samples, the first time; 0 when it is told again.
        """
        before = self.passes, self.consumed
        self.passes, batch = divmod(batch_idx, len(self))
        self.consumed = self._of_pass(self.passes).stops[batch]
        is_new = (self.passes, self.consumed) > before
        return self._share(self.passes, batch).total if is_new else 0

    def first_batch(self) -> int:
        """Index of the first global batch of the pass that was not consumed before a resume."""
        return sum(stop <= self.consumed for stop in self._of_pass(self.passes).stops)

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this at the start of each epoch."""
        if epoch != self.epoch:
            self._begin(epoch)

    def _begin(self, epoch: int, passes: int = 0, consumed: int = 0) -> None:
        self.epoch, self.passes, self.consumed = epoch, passes, consumed
        self._reading, self._has_ended = passes, False

    def state_dict(self) -> dict[str, int]:
        """Where the epoch stands, counted in samples: independent of rank and world size."""
        is_over = self.first_batch() == len(self._of_pass(self.passes).stops)
        place = {"seed": self.seed, "epoch": self.epoch, "consumed": self.consumed}
        return place | {"passes": self.passes, "is_over": int(is_over)}

    def load_state_dict(self, state: dict[str, Any], is_inside: bool = False) -> None:
        """Continue where another run stopped, in the same order of samples.

        Args:
            state: What `state_dict` returned.
            is_inside: Whether the epoch goes on, with another pass where one is over.

        Raises:
            ValueError: If no global batch ends there: batches are of another size now.
        """
        self.seed = state["seed"]
        self._begin(state["epoch"], state.get("passes", 0), state["consumed"])
        stops = self._of_pass(self.passes).stops
        if state.get("is_over") or self.first_batch() == len(stops):
            place = (self.epoch, self.passes + 1) if is_inside else (self.epoch + 1,)
            self._begin(*place)
        elif self.consumed not in (0, *stops):
            raise ValueError(
                f"no batch ends at sample {self.consumed} now; leave the batch size and the data "
                "as they were"
            )


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
