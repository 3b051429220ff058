"""Takes a rank's rows out of a global batch that every rank has read."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from ..compat.of_torch import tree_leaves, tree_map
from ..errors import UserError
from .share import part_of

Batch = tuple[Any, int, int]
"""A share, the number of samples in the global batch, and the batch's fingerprint."""


class CollateShare:
    """Collates a rank's share of each global batch, in the process that reads the batch."""

    def __init__(self, collate: Callable[[Any], Any], rank: int, num_replicas: int) -> None:
        self.collate = collate
        self.rank = rank
        self.num_replicas = num_replicas
        self._is_first = True

    def __call__(self, samples: list[Any]) -> Batch:
        is_first, self._is_first = self._is_first, False
        part = part_of(len(samples), self.rank, self.num_replicas)
        return self.collate(samples[part]), len(samples), fingerprint(samples) if is_first else 0


def cut_rows(batch: Any, rank: int, num_replicas: int, name: str) -> tuple[Any, int]:
    """Take a rank's rows of a batch that a data set yields as such (``batch_size=None``).

    Args:
        batch: Tensors in any containers; their first dimension is the batch.
        rank: This rank's number among the ranks that see different samples.
        num_replicas: The number of those ranks.
        name: The class of the data set, for the error.

    Returns:
        The rows, and the number of samples in the batch.
    """
    leaves = tree_leaves(batch)
    sizes = {leaf.shape[:1] if isinstance(leaf, Tensor) else None for leaf in leaves}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    if num_replicas == 1:
        return batch, size[0] if size else 1
    if not size:
        raise UserError(
            f"strategy: {name} yields full batches (batch_size=None), which {num_replicas} ranks "
            "can share only if they contain nothing but tensors with equally many rows; let it "
            "yield samples: DataLoader(stream, batch_size=..., collate_fn=...)"
        )
    part = part_of(size[0], rank, num_replicas)
    return tree_map(lambda rows: rows[part], batch), size[0]


def fingerprint(samples: Any) -> int:
    """A checksum of the numbers and strings in samples, the same in every process."""
    number = 0
    for leaf in tree_leaves(samples):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            leaf = leaf.detach().cpu().flatten().view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            number = crc32(leaf.tobytes(), number)
        elif isinstance(leaf, int | float | str | bytes):
            number = crc32(repr(leaf).encode(), number)
    return number
