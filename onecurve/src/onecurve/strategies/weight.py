"""Weights the losses of batches, by samples or by something else, such as tokens.

A task's ``weight(targets)`` returns what its loss is a mean over: the number of tokens that are not
padding, or the sum of class weights. If the batch is not a pair and the task has no `prepare`, the
call is ``weight(batch)``. The weights of the parts of a batch must add up to that of the batch.

A batch whose labels are ignored in part (-100, as in transformers) has a loss that is probably a
mean over the others: without `weight`, a line says so.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ..compat.of_torch import tensor_leaves

IGNORED = -100
"""The label that cross_entropy ignores."""


def weighs(module: LightningModule) -> bool:
    """Whether a task has a method `weight`."""
    return callable(getattr(module, "weight", None))


def weight_of(module: LightningModule, targets: Any) -> Tensor | None:
    """The task's `weight` of targets or of a batch, in float64; None without such a method."""
    if not weighs(module):
        return None
    return torch.as_tensor(module.weight(targets)).detach().double()  # type: ignore[operator]


def ignores_labels(batch: Any) -> bool:
    """Whether labels of sequences in a batch are ignored."""
    return any(
        bool((tensor == IGNORED).any())
        for tensor in tensor_leaves(batch)
        if tensor.ndim > 1 and tensor.dtype == torch.int64
    )


def no_loss(outputs: Any, targets: Any) -> Tensor:
    """Zero, whose backward pass gives every parameter a gradient of zero."""
    return torch.stack([leaf.sum() * 0.0 for leaf in tensor_leaves(outputs)]).sum()


def rows(batch: Any) -> int:
    """Samples of a batch that no loader of ours made; 1 if its tensors disagree."""
    sizes = {len(tensor) for tensor in tensor_leaves(batch) if tensor.ndim}
    return sizes.pop() if len(sizes) == 1 else 1
