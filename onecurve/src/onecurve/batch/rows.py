"""A rank's rows of a batch that was read or made as a whole."""

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
"""A share, the samples of the whole batch, and a number that tells that from other batches."""


class Cut:
    """Collates a rank's share of each global batch, in the process where it is read."""

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
    """The same for a stream that yields whole batches (``batch_size=None``).

    Args:
        batch: Tensors in any containers, whose first dimension is the batch.
        rank: Coordinate of this rank among the ranks that see different samples.
        num_replicas: Number of those ranks.
        name: The class of the stream.
    """
    leaves = tree_leaves(batch)
    sizes = {leaf.shape[:1] if isinstance(leaf, Tensor) else None for leaf in leaves}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    if num_replicas == 1:
        return batch, size[0] if size else 1
    if not size:
        raise UserError(
            f"strategy: {name} yields whole batches (batch_size=None), which {num_replicas} ranks "
            "can share only where all in them are tensors of as many rows; let it yield samples: "
            "DataLoader(stream, batch_size=..., collate_fn=...)"
        )
    part = part_of(size[0], rank, num_replicas)
    return tree_map(lambda rows: rows[part], batch), size[0]


def fingerprint(samples: Any) -> int:
    """A number that tells samples from others, of what has the same bytes wherever it is made."""
    number = 0
    for leaf in tree_leaves(samples):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            leaf = leaf.detach().cpu().flatten().view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            number = crc32(leaf.tobytes(), number)
        elif isinstance(leaf, int | float | str | bytes):
            number = crc32(repr(leaf).encode(), number)
    return number
