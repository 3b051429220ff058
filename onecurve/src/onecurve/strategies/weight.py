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

from ..compat.of_lightning import accumulates
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


class Window:
    """The batches that one optimizer step accumulates.

    Lightning divides each batch's loss by `accumulate_grad_batches`. That equals the mean over
    samples only if the window has that many batches, all of the same size. But the last window of
    an epoch may have fewer, its last batch may be smaller, and with a task's `weight` any two
    batches may differ.

    So each loss is multiplied by its batch's count relative to the first batch of the window.
    Before the backward pass of the last batch, the accumulated gradients are rescaled to the mean.
    Nothing is read ahead, so a stream may end anywhere. In a full window of equal batches every
    factor is 1.
    """

    def __init__(self, module: LightningModule) -> None:
        self.module = module
        # The count of the first batch with a nonzero count, and the sum of all relative to it.
        self._first = 0.0
        self._relative = 0.0

    @torch.no_grad()
    def factor(self, count: float) -> float:
        """The factor for the loss of the current batch; call it right before the backward pass.

        Args:
            count: Samples of the batch over all ranks, or their weight according to the task's
                `weight`; 0 if the step was skipped.
        """
        self._first = self._first or count
        relative = count / self._first if self._first else 0.0
        self._relative += relative
        if accumulates(self.module.trainer):
            return relative
        trainer = self.module.trainer
        to_mean = trainer.accumulate_grad_batches / self._relative if self._relative else 1.0
        if to_mean != 1.0:
            # Not module.parameters(): FSDP2 may have gathered those, and they have no gradients.
            groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
            for parameter in (each for group in groups for each in group["params"]):
                if parameter.grad is not None:
                    parameter.grad.mul_(to_mean)
        return relative * to_mean
