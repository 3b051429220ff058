"""Random numbers that follow from where a run is, not from how it came there.

Each training step draws from (seed, step, data-parallel rank), and each sample that a data set
prepares from (seed, epoch, index). So a run that was interrupted draws what the whole one would
have drawn, and nothing has to be saved; under another number of ranks the samples keep theirs.
"""

import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


def global_seed() -> int:
    """The seed of the run, where Lightning keeps it."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def draw_from(*coordinates: int) -> None:
    """Let Python, NumPy and PyTorch draw what follows from these numbers."""
    seed = int(np.random.SeedSequence(coordinates).generate_state(1, np.uint64)[0]) % 2**63
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed does the same, but takes a hundred times as long without a GPU.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


class Indices(list[int]):
    """The samples of one batch, and what they are drawn from beside their index."""

    def __init__(self, indices: Sequence[int], seed: int, epoch: int) -> None:
        super().__init__(indices)
        self.seed = seed
        self.epoch = epoch


class DrawnBySample(Dataset[Any]):
    """A data set whose random transforms draw from (seed, epoch, index), in any worker process.

    Args:
        dataset: The one that the user wrote; its attributes are those of this one.
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = []
        for index in indices:
            if isinstance(indices, Indices):
                draw_from(indices.seed, indices.epoch, index)
            samples.append(self.dataset[index])
        return samples

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not yet there while a worker unpickles this
            raise AttributeError(name)
        return getattr(self.dataset, name)
