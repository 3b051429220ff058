"""Random numbers that follow from where a run is, not from how it came there.

What a data-parallel rank does to its samples draws from (seed, step, rank), and each sample that a
data set prepares from (seed, epoch, index). All else, as hooks between two steps, draws from (seed,
step): ranks that add noise to weights add the same. So a run that was interrupted draws what the
whole one would have drawn, and nothing has to be saved; under another number of ranks the samples
keep theirs.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import torch


def global_seed() -> int:
    """The seed of the run, where Lightning keeps it."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def draw_from(*coordinates: int) -> None:
    """Let Python, NumPy and PyTorch draw what follows from these numbers."""
    seed = _seed_of(coordinates)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed does the same, but takes a hundred times as long without a GPU.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


# A step draws from the same more than once.
@lru_cache(maxsize=8)
def _seed_of(coordinates: tuple[int, ...]) -> int:
    # The same words as of Python's integers, and faster.
    short = all(0 <= number < 2**32 for number in coordinates)
    words: Any = np.array(coordinates, np.uint32) if short else coordinates
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) % 2**63


@contextmanager
def drawing_from(*coordinates: int) -> Iterator[None]:
    """Draw on the CPU what follows from these numbers, and then as if nothing had been drawn."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    draw_from(*coordinates)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])


class Draws(IntEnum):
    """What the numbers of a step are for: the last coordinate of what they follow from."""

    BATCH = 0
    """Moving and augmenting this rank's share of the batch."""
    STEP = 1
    """The task's step on this rank's share."""
    ALL_RANKS = 2
    """All else, which must come out alike on every rank."""
    PREPARE = 3
    """What a task draws in `prepare`, for the whole global batch."""
    EVALUATE = 4
    """The same for a batch of an evaluation, which is one and the same in every epoch."""


class Indices(list[int]):
    """The samples of one batch, and what they are drawn from beside their index."""

    def __init__(self, indices: Sequence[Any], seed: int, epoch: int) -> None:
        super().__init__(indices)
        self.seed = seed
        self.epoch = epoch
