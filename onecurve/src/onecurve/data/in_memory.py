"""Images that fit in memory, indexed by whole batches."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

Batch = tuple[Tensor, Tensor]


class InMemoryImages(Dataset[Batch]):
    """Labelled images in two tensors.

    PyTorch's DataLoader requests a whole batch at once if a dataset has `__getitems__`. That
    batch is complete, so the DataLoader needs `collate_fn=whole_batch`.

    Args:
        images: (N, C, H, W), uint8.
        labels: (N,), int64.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images.contiguous()
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        index = torch.as_tensor(indices)
        return self.images.index_select(0, index), self.labels.index_select(0, index)

    def subset(self, indices: Tensor) -> Self:
        """Return the images at these indices as a set of their own."""
        return type(self)(self.images[indices], self.labels[indices])


def whole_batch(batch: Any) -> Any:
    """Collate function of a dataset whose `__getitems__` returns the batch itself."""
    return batch
