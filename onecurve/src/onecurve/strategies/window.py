"""The batches that one optimizer step accumulates, weighted as if they were one batch."""

from collections.abc import Iterable

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ..compat.of_lightning import accumulates, results_of, set_value_of_step, value_of_step


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
        self._logged: dict[str, tuple[Tensor, float]] = {}

    @property
    def _is_complete(self) -> bool:
        return not accumulates(self.module.trainer)

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
        if not self._is_complete:
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

    def log(self, count: float, names: Iterable[str]) -> None:
        """Replace logged values by those of the whole window, once it is complete.

        Metric objects of torchmetrics keep the value of the last batch.

        Args:
            count: As for `factor`.
            names: The names that the step logged.
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
