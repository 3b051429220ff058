"""The random number generators: their states, and what each rank draws for itself.

A process with all samples (`strategy=single`) draws as under a plain Trainer: nothing here touches
its generators, but to restore them on resume.

Where several ranks share a batch there are two streams. The *common* one is the process's own: each
rank draws the same from it, in the same order, as a plain Trainer does: the order of samples, what
hooks draw between two steps, what `prepare` draws for a global batch. What a rank does to its own
samples (fetch and augment them, dropout in the step) draws from a seed of (run, rank, place in the
run), and leaves the common stream where it was. So the ranks' dropout masks differ, and a resume
draws what the whole run would have drawn.
"""

import os
import random
from collections.abc import Container, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

State = tuple[Any, Any, Tensor, Tensor | None]
"""Of Python's, NumPy's, PyTorch's generator, and that of the current GPU."""


def global_seed() -> int:
    """The seed of the run where somebody set one, else the one that PyTorch began with."""
    seed = os.environ.get("PL_GLOBAL_SEED")
    return int(seed) if seed is not None else torch.initial_seed()


def get_state() -> State:
    """The states of all generators of this process."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state(), cuda


def set_state(state: State) -> None:
    """Put the generators where they were."""
    python, numpy, cpu, cuda = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.default_generator.set_state(cpu)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)


def to_tensors(state: State) -> dict[str, Any]:
    """A state as a checkpoint holds it: plain data, which `torch.load(weights_only=True)` reads."""
    (version, words, gauss), numpy, cpu, cuda = state
    return {
        "python": [version, torch.tensor(words), gauss],
        "numpy": [numpy[0], torch.from_numpy(numpy[1].astype(np.int64)), *numpy[2:]],
        "torch": cpu,
        "cuda": cuda,
    }


def from_tensors(state: dict[str, Any]) -> State:
    """What `to_tensors` was given."""
    version, words, gauss = state["python"]
    name, keys, *rest = state["numpy"]
    return (
        (version, tuple(words.tolist()), gauss),
        (name, keys.numpy().astype(np.uint32), *rest),
        state["torch"],
        state["cuda"],
    )


def draw_from(*coordinates: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators by these numbers."""
    seed = _seed_of(coordinates)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed does the same, but takes a hundred times as long without a GPU.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


@lru_cache(maxsize=8)
def _seed_of(coordinates: tuple[int, ...]) -> int:
    # The same words as of Python's integers, and faster.
    short = all(0 <= number < 2**32 for number in coordinates)
    words: Any = np.array(coordinates, np.uint32) if short else coordinates
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) % 2**63


@contextmanager
def kept_state() -> Iterator[None]:
    """Leave the generators where they were."""
    before = get_state()
    try:
        yield
    finally:
        set_state(before)


class Draws(IntEnum):
    """What a rank draws for itself: a part of what it is seeded by."""

    FETCH = 0
    """Reading this rank's samples in this process."""
    BATCH = 1
    """Moving and augmenting its share of the batch."""
    STEP = 2
    """The task's step on its share."""
    WORKERS = 3
    """The seed of the loader's worker processes."""


class RankStream:
    """The two streams of one rank.

    Args:
        rank: Which share of a batch this rank sees.
        apart: What this rank draws for itself. Stages of one pipeline fetch and augment alike; what
            a process with all samples draws is drawn as under a plain Trainer.

    Attributes:
        seed: Of all that ranks draw for themselves in this fit or evaluation.
    """

    def __init__(self, rank: int, apart: Container[Draws] = tuple(Draws)) -> None:
        self.rank = rank
        self.apart = apart
        self.seed = 0
        self._common: State | None = None

    def reseed(self) -> None:
        """Take a seed from where the common stream stands, without drawing: another in each fit."""
        self.seed = crc32(torch.default_generator.get_state().numpy().tobytes())

    @contextmanager
    def own(self, what: Draws, *place: int) -> Iterator[None]:
        """Draw meanwhile what belongs to this rank and to a place in the run."""
        if what not in self.apart:
            yield
            return
        self._common = get_state()
        draw_from(self.seed, *place, self.rank, what)
        try:
            yield
        finally:
            set_state(self._common)
            self._common = None

    @contextmanager
    def common(self) -> Iterator[None]:
        """Draw meanwhile what all ranks draw, also inside `own`."""
        if self._common is None:
            yield
            return
        own, common = get_state(), self._common
        self._common = None
        set_state(common)
        try:
            yield
        finally:
            self._common = get_state()
            set_state(own)

    @property
    def common_state(self) -> State:
        """Where the common stream stands."""
        return self._common or get_state()
