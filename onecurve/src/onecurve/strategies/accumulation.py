"""Batches accumulated into one step count by their samples, as if they were one batch.

Lightning divides each batch's loss by `accumulate_grad_batches`. That is the mean over the samples
of a window only if it has so many batches, all of one size: the last window of an epoch has fewer,
its last batch is smaller, and by a task's `weight` any two batches may differ.

So each loss is multiplied by what its batch counts relative to the window's first, and before the
backward pass of the last one, what has been accumulated is rescaled to the mean. Nothing is looked
up ahead, so a stream may end anywhere. In a full window of equal batches every factor is exactly 1.
"""

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ..compat.of_lightning import accumulates, results_of, set_value_of_step, value_of_step
from ..compat.of_torch import tensor_leaves


class Window:
    """The batches of one optimizer step, as far as they have come.

    Args:
        module: The task, whose gradients are accumulated.
    """

    def __init__(self, module: LightningModule) -> None:
        self.module = module
        # What the first batch counts that counts anything, and all of them relative to it.
        self._first = 0.0
        self._relative = 0.0
        self._logged: dict[str, tuple[Tensor, float]] = {}

    @property
    def _is_complete(self) -> bool:
        """Whether the batch under way is the last before the optimizer's step."""
        return not accumulates(self.module.trainer)

    @torch.no_grad()
    def factor(self, count: float) -> float:
        """What the loss of the batch under way is multiplied by; its backward pass comes next.

        Args:
            count: Its samples over all ranks, or what the task's `weight` says of them; 0 if the
                step was skipped.
        """
        self._first = self._first or count
        relative = count / self._first if self._first else 0.0
        self._relative += relative
        if not self._is_complete:
            return relative
        trainer = self.module.trainer
        to_mean = trainer.accumulate_grad_batches / self._relative if self._relative else 1.0
        if to_mean != 1.0:
            # The module's own may be gathered ones at this point, without what is accumulated.
            groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
            for parameter in (each for group in groups for each in group["params"]):
                if parameter.grad is not None:
                    parameter.grad.mul_(to_mean)
        return relative * to_mean

    def log(self, count: float, names: Iterable[str]) -> None:
        """Let what a step logged have the value of the whole step, once the window is complete.

        But for torchmetrics' objects: they have that of the last batch.

        Args:
            count: As for `factor`.
            names: What it logged.
        """
        results = results_of(self.module.trainer)
        assert results is not None
        for name in names:
            result = results[f"training_step.{name}"]
            if not result.is_tensor or not result.meta.on_step:
                continue
            value = value_of_step(result)
            before, counted = self._logged.get(name, (None, 0.0))
            if before is not None and not result.meta.is_mean_reduction:
                value = result.meta.reduce_fx(torch.stack([before, value]))
            elif before is not None and counted:
                share = count / (counted + count)
                value = before * (1 - share) + value * share
            self._logged[name] = value, counted + count
            if self._is_complete:
                set_value_of_step(result, value)


def rows(batch: Any) -> int:
    """Samples of a batch that comes from no loader of ours: 1, where its tensors do not tell."""
    sizes = {len(tensor) for tensor in tensor_leaves(batch) if tensor.ndim}
    return sizes.pop() if len(sizes) == 1 else 1
