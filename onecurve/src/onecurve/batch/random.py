"""The states of the random number generators, and the two random streams of each rank.

A process with all samples (`strategy=single`) draws as under a plain Trainer. Its generators are
only touched to restore them on resume.

If several ranks share a batch, there are two streams. The *common* stream is the state of the
process's generators. All ranks draw the same numbers from it, in the order of a plain Trainer: the
order of samples, what hooks draw between steps, what `prepare` draws for a global batch. What a
rank draws for its own samples (reading and augmenting them, dropout in the step) is seeded by (run,
rank, position in the run), and leaves the common stream unchanged. So dropout masks differ between
ranks, and a resumed run draws what an uninterrupted one would have drawn.
"""

import os
import random
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

State = tuple[Any, Any, Tensor, Tensor | None]
"""The states of Python's, NumPy's and PyTorch's generators, and of the current GPU's."""


def global_seed() -> int:
    """The run's seed if one was set, else PyTorch's initial seed."""
    seed = os.environ.get("PL_GLOBAL_SEED")
    return int(seed) if seed is not None else torch.initial_seed()


def get_state() -> State:
    """The states of all generators of this process."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state(), cuda


def set_state(state: State) -> None:
    """Restore the states of all generators."""
    python, numpy, cpu, cuda = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.default_generator.set_state(cpu)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)


def are_equal(one: State, other: State) -> bool:
    """Whether two states are the same."""
    (python, numpy, *torchs), (python_too, numpy_too, *torchs_too) = one, other
    return (
        python == python_too
        and all(map(np.array_equal, numpy, numpy_too))
        and all(np.array_equal(*pair) for pair in zip(torchs, torchs_too, strict=True))  # type: ignore[arg-type]
    )


class States(NamedTuple):
    """The states of the process's generators, and of those that loaders have."""

    process: State
    others: list[Tensor]

    @classmethod
    def of(cls, generators: Iterable[torch.Generator], process: State | None = None) -> "States":
        """The states of now; those of the process may be given."""
        others = [generator.get_state() for generator in generators]
        return cls(get_state() if process is None else process, others)

    def restore(self, generators: Iterable[torch.Generator]) -> None:
        """Restore them, with these generators in the places of those before."""
        set_state(self.process)
        for generator, state in zip(generators, self.others, strict=False):
            generator.set_state(state)

    def to_tensors(self) -> dict[str, Any]:
        """Plain data for a checkpoint, which `torch.load(weights_only=True)` can read."""
        (version, words, gauss), numpy, cpu, cuda = self.process
        return {
            "python": [version, torch.tensor(words), gauss],
            "numpy": [numpy[0], torch.from_numpy(numpy[1].astype(np.int64)), *numpy[2:]],
            "torch": cpu,
            "cuda": cuda,
            "generators": self.others,
        }

    @classmethod
    def from_tensors(cls, data: dict[str, Any]) -> "States":
        """The inverse of `to_tensors`."""
        version, words, gauss = data["python"]
        name, keys, *rest = data["numpy"]
        python, numpy = (version, tuple(words.tolist()), gauss), keys.numpy().astype(np.uint32)
        return cls((python, (name, numpy, *rest), data["torch"], data["cuda"]), data["generators"])


def draw_from(*coordinates: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators from these numbers."""
    seed = _seed_of(coordinates)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed does the same, but takes a hundred times as long without a GPU.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


@lru_cache(maxsize=8)
def _seed_of(coordinates: tuple[int, ...]) -> int:
    # Yields the same seed as Python integers, only faster.
    short = all(0 <= number < 2**32 for number in coordinates)
    words: Any = np.array(coordinates, np.uint32) if short else coordinates
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) % 2**63


@contextmanager
def kept_state() -> Iterator[None]:
    """Restore the generators at the end of the context."""
    before = get_state()
    try:
        yield
    finally:
        set_state(before)


class Draws(IntEnum):
    """What a rank draws from its own stream; part of the seed."""

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

    Attributes:
        rank: This rank's number among the ranks that draw different numbers.
        independent: What this rank draws from its own stream; everything else comes from the
            common one. Stages of one pipeline, for example, read and augment samples identically.
        seed: The seed of the ranks' own streams in this fit or evaluation.
    """

    def __init__(self, rank: int, independent: Container[Draws] = tuple(Draws)) -> None:
        self.rank = rank
        self.independent = independent
        self.seed = 0
        self._common: State | None = None

    def reseed(self) -> None:
        """Derive a new seed for each fit from the common stream's state, without drawing."""
        self.seed = crc32(torch.default_generator.get_state().numpy().tobytes())

    @contextmanager
    def of_rank(self, what: Draws, *position: int) -> Iterator[None]:
        """Draw from this rank's own stream, seeded by a position in the run, within the context.

        Inside of another one, as in a step that reads batches itself, that one goes on afterwards.
        """
        if what not in self.independent:
            yield
            return
        outer, before = self._common, get_state()
        if outer is None:
            self._common = before
        draw_from(self.seed, *position, self.rank, what)
        try:
            yield
        finally:
            if outer is None:  # `common` may have drawn from it
                before, self._common = self._common or before, None
            set_state(before)

    @contextmanager
    def common(self) -> Iterator[None]:
        """Draw from the common stream within the context, even inside `of_rank`."""
        if self._common is None:
            yield
            return
        own_state, common = get_state(), self._common
        self._common = None
        set_state(common)
        try:
            yield
        finally:
            self._common = get_state()
            set_state(own_state)

    @property
    def common_state(self) -> State:
        """The current state of the common stream."""
        return self._common or get_state()
