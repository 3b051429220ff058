"""Computes BatchNorm statistics for averaged weights, which no training step has used."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch import Tensor

from ..compat.of_torch import BatchNorm


@torch.no_grad()
def recompute_statistics(trainer: Trainer) -> None:
    """Recompute BatchNorm statistics in one pass over the training data. No weight changes.

    As in `torch.optim.swa_utils.update_bn` they are the average over batches of each batch's mean
    and variance, here of the global batch. Dropout is off.
    """
    module: Any = trainer.lightning_module
    layers = [part for part in module.modules() if isinstance(part, BatchNorm)]
    if not layers:
        return
    was_training = module.training
    module.eval()
    strategy: Any = trainer.strategy
    with ExitStack() as stack:
        measuring = [_Measuring(layer, strategy.reduce) for layer in layers]
        for each in measuring:
            if each.layer.running_mean is not None and not each.layer.running_mean.is_meta:
                stack.enter_context(each)
        for batch, counts in strategy.training_batches():
            for each in measuring:
                each.counts = counts
            strategy.forward_only(batch)
    module.train(was_training)


class _Measuring:
    """Lets a layer normalize by the statistics of the global batch, and average them."""

    def __init__(self, layer: BatchNorm, reduce: Callable[..., Tensor]) -> None:
        self.layer = layer
        self.reduce = reduce
        self.counts = True
        self.batches = 0

    def __enter__(self) -> None:
        self.layer.reset_running_stats()
        self.layer.forward = self._forward  # type: ignore[assignment,method-assign]

    def __exit__(self, *error: object) -> None:
        del self.layer.forward
        if self.layer.num_batches_tracked is not None:
            self.layer.num_batches_tracked.fill_(self.batches)

    def _forward(self, inputs: Tensor) -> Tensor:
        channels = inputs.transpose(0, 1).flatten(1).double()
        sums = torch.stack([channels.sum(1), channels.square().sum(1)])
        values = torch.full_like(sums[:1], channels.shape[1])
        totals = torch.cat([sums, values]) * float(self.counts)
        total, squares, count = self.reduce(totals, reduce_op="sum")
        mean = total / count
        variance = squares / count - mean.square()
        self._keep(mean, variance * count / (count - 1))
        layer = self.layer
        statistics = mean.to(inputs.dtype), variance.to(inputs.dtype)
        return F.batch_norm(inputs, *statistics, layer.weight, layer.bias, False, 0.0, layer.eps)

    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        self.batches += 1
        running: Any = (self.layer.running_mean, self.layer.running_var)
        for kept, new in zip(running, (mean, variance), strict=True):
            kept.lerp_(new.to(kept.dtype), 1 / self.batches)
