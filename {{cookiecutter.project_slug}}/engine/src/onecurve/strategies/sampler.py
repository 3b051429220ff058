"""Which samples make up a training step, whatever the number of ranks.

A step is a *global batch*: a contiguous slice of a permutation that depends on (seed, epoch) alone.
Each data-parallel rank takes its share of the slice. So a change of strategy or of world size
changes who computes, never what is computed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
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


class GlobalBatchSampler(Sampler[list[int]]):
    """Yields this rank's indices of each global batch.

    Args:
        num_samples: Size of the data set.
        batch_size: Samples per step over **all** ranks.
        shuffle: Draw a new permutation from (seed, epoch) each epoch, or keep the order.
        seed: Seed of the permutation.
        rank: This rank's data-parallel coordinate.
        num_replicas: Number of data-parallel ranks.
        drop_last: Leave out a last batch that is not full.
        merge_tail: Join a last batch that has fewer samples than there are ranks to the batch
            before it. For evaluation, where every rank must have something in every batch and no
            sample may count twice.

    Raises:
        ValueError: With ``merge_tail``, if there are fewer samples than ranks.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        num_replicas: int = 1,
        drop_last: bool = False,
        merge_tail: bool = False,
    ) -> None:
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.num_replicas = num_replicas
        self.drop_last = drop_last
        self.epoch = 0
        self.consumed = 0
        # Lightning announces a new epoch to `loader.batch_sampler.sampler`.
        self.sampler = self

        stops = list(range(batch_size, num_samples + 1, batch_size))
        tail = num_samples - (stops[-1] if stops else 0)
        if tail and not drop_last:
            if merge_tail and tail < num_replicas:
                if not stops:
                    raise ValueError(
                        f"{num_samples} samples cannot be shared by {num_replicas} ranks"
                    )
                stops[-1] = num_samples
            else:
                stops.append(num_samples)
        self._stops = stops

    def __len__(self) -> int:
        """Global batches in an epoch; the same on every rank."""
        return len(self._stops)

    def share(self, batch_idx: int) -> Share:
        """This rank's part of a global batch.

        Sizes differ between ranks by one at most; the lower ranks take the remainder.
        """
        first = self._stops[batch_idx - 1] if batch_idx else 0
        total = self._stops[batch_idx] - first
        quotient, remainder = divmod(total, self.num_replicas)
        start = first + self.rank * quotient + min(self.rank, remainder)
        return Share(start, start + quotient + (self.rank < remainder), total)

    def order(self) -> torch.Tensor:
        """The epoch's order of all samples, shape ``(num_samples,)``."""
        if not self.shuffle:
            return torch.arange(self.num_samples)
        state = np.random.SeedSequence((self.seed, self.epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]) % 2**63)
        return torch.randperm(self.num_samples, generator=generator)

    def __iter__(self) -> Iterator[list[int]]:
        """Yields index lists from the first batch that is not yet consumed."""
        order = self.order()
        for batch_idx in range(self.first_batch(), len(self)):
            start, stop, _ = self.share(batch_idx)
            if start == stop:
                # A rank without a share still takes part in the step: its sample weighs nothing.
                start, stop = stop - 1, stop
            yield Indices(order[start:stop].tolist(), self.seed, self.epoch)

    def first_batch(self) -> int:
        """Index of the first global batch that was not consumed before a resume."""
        return sum(stop <= self.consumed for stop in self._stops)

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this at the start of each epoch."""
        if epoch != self.epoch:
            self.epoch, self.consumed = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Where the epoch stands, counted in samples: independent of rank and world size."""
        return {"seed": self.seed, "epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where another run stopped, in the same order of samples."""
        self.seed, self.epoch, self.consumed = state["seed"], state["epoch"], state["consumed"]
        if self.first_batch() == len(self):
            self.epoch, self.consumed = self.epoch + 1, 0
