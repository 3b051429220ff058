"""Where global batches come from: a permutation of ours, or samplers that a user wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .sampler import Epoch
from .seeding import drawing_from


class Permuted:
    """All samples once, in a random order or in their own.

    Args:
        num_samples: Samples of the data set.
        batch_size: Samples of a global batch.
        shuffle: Whether the order is random.
        drop_last: Leave out a last batch that is not full.
    """

    def __init__(
        self, num_samples: int, batch_size: int, *, shuffle: bool, drop_last: bool = False
    ) -> None:
        self.num_samples = num_samples
        self.shuffle = shuffle
        self._stops = list(range(batch_size, num_samples + 1, batch_size))
        if num_samples % batch_size and not drop_last:
            self._stops.append(num_samples)

    def __len__(self) -> int:
        return len(self._stops)

    def epoch(self, seed: int, number: int) -> Epoch:
        """A permutation that follows from (seed, epoch)."""
        if not self.shuffle:
            return Epoch(range(self.num_samples), self._stops)
        state = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]) % 2**63)
        return Epoch(torch.randperm(self.num_samples, generator=generator), self._stops)


class Own:
    """What a sampler or batch sampler of the user's own yields, drawn from (seed, epoch).

    An epoch is drawn at once, so that every rank knows all of it: which part is its own, and, after
    a resume, what was seen before.

    Args:
        sampler: Yields the indices of one global batch at a time, and has a length.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        # The sampler that draws may be the one inside.
        self._drawing = [sampler, getattr(sampler, "sampler", None)]

    def __len__(self) -> int:
        return len(self.sampler)

    def epoch(self, seed: int, number: int) -> Epoch:
        """What it yields in that epoch."""
        for part in self._drawing:
            if hasattr(part, "set_epoch"):
                part.set_epoch(number)
        generators = [getattr(part, "generator", None) for part in self._drawing]
        order: list[Any] = []
        stops: list[int] = []
        with drawing_from(seed, number), _in_epoch(generators, number):
            for batch in self.sampler:
                order += [index.item() if isinstance(index, Tensor) else index for index in batch]
                stops.append(len(order))
        return Epoch(order, stops)


@contextmanager
def _in_epoch(generators: list[torch.Generator | None], number: int) -> Iterator[None]:
    """Let generators of a sampler's own draw for an epoch what follows from their seed and it."""
    own = [generator for generator in generators if generator is not None]
    before = [generator.get_state() for generator in own]
    for generator in own:
        generator.manual_seed(generator.initial_seed() + number)
    try:
        yield
    finally:
        for generator, state in zip(own, before, strict=True):
            generator.set_state(state)
