"""Stochastic weight averaging (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407)."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ..arguments import configured_by
from ..compat.of_torch import BatchNorm
from ..errors import UserError
from ..optim.steps import steps_done, steps_in_all
from .average import Averaging
from .options import StochasticWeightAveragingOptions


class StochasticWeightAveraging(Averaging):
    """Averages the weights of the last part of training; the final test takes the average.

    Training itself does not use the average: its steps are the same as without it, but for the
    learning rate, if one is given. At the end BatchNorm statistics are computed for the average,
    and it is saved.

    Lightning's callback averages the weights at the start of epochs, and makes an extra step for
    BatchNorm.

    The arguments are described in `StochasticWeightAveragingOptions`. Where parameter groups have
    different learning rates, `lr` is that of the first, and the others keep their ratio.

    Attributes:
        final_weights: The file, once it is written; the final test takes it.
    """

    @configured_by(StochasticWeightAveragingOptions, "callbacks.swa")
    def __init__(self, options: StochasticWeightAveragingOptions) -> None:
        super().__init__()
        self.file = options.file
        self.start = options.start
        self.every_n_steps = options.every_n_steps
        self.lr = options.lr
        self.anneal_epochs = options.anneal_epochs
        self.annealing = options.annealing
        self.final_weights: str | None = None
        self._lrs: list[list[float]] = []
        self._restored: tuple[dict[str, Any], int] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the average of a resumed run."""
        batches = trainer.num_training_batches
        self._steps_an_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
        if math.isinf(self._first_step(trainer)):
            raise UserError(
                f"callbacks.swa.start={self.start:g}: is a fraction of a run, and this run has no "
                "end; give a number of epochs, such as callbacks.swa.start=10"
            )
        super().on_train_start(trainer, pl_module)
        if self._restored:
            self.average.restore(pl_module, *self._restored)
            self._restored = None

    def _first_step(self, trainer: Trainer) -> float:
        return self.start * (steps_in_all(trainer) if self.start < 1 else self._steps_an_epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the learning rate of this phase, in place of the scheduler's."""
        if self.lr is None or (steps := steps_done(trainer) - self._first_step(trainer)) < 0:
            return
        if not self._lrs:
            optimizers = trainer.optimizers
            self._lrs = [[float(group["lr"]) for group in each.param_groups] for each in optimizers]
        epochs = steps / self._steps_an_epoch
        share = min(1.0, epochs / self.anneal_epochs) if self.anneal_epochs else 1.0
        if self.annealing == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        for optimizer, before in zip(trainer.optimizers, self._lrs, strict=True):
            for group, lr in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = lr + share * (self.lr * lr / before[0] - lr)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, first = steps_done(trainer), self._first_step(trainer)
        if not self.has_stepped(trainer) or step <= first:
            return
        if self.every_n_steps:
            is_due = (step - math.floor(first)) % self.every_n_steps == 0
        else:
            is_due = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if is_due:
            self.average.add(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the average, with its own BatchNorm statistics."""
        if not self.average.count:
            if trainer.is_global_zero:
                print(f"swa: the run ended before callbacks.swa.start={self.start:g}: no average")
            return
        buffers = {n: each.clone() for n, each in pl_module.named_buffers() if not each.is_meta}
        with self.average.in_place(pl_module):
            recompute_statistics(trainer)
            self.is_saving = True
            trainer.save_checkpoint(self.file)
            self.is_saving = False
        for name, buffer in pl_module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
        self.final_weights = self.file

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.average.count, "lrs": self._lrs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, or the state of Lightning's callback of this name."""
        self._lrs = state_dict.get("lrs", [])
        self.average.count = _count(state_dict)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the average, by parameter name."""
        if self.is_saving:
            checkpoint["state_dict"] = self.average.widened(trainer, checkpoint["state_dict"])
        elif self.average.count:
            checkpoint.setdefault("averages", {})["swa"] = self.average.gathered(trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the average until the module is sharded or split."""
        state = checkpoint["callbacks"].get(self.state_key, {})
        average = checkpoint.get("averages", {}).get("swa", state.get("average_model_state"))
        if average and _count(state):
            self._restored = average, _count(state)


def _count(state: dict[str, Any]) -> int:
    count: int = state.get("count", state.get("n_averaged", 0))
    return count


# BatchNorm statistics of the average, which no forward pass of training has used


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
        self.layer, self.reduce = layer, reduce
        self.counts = True
        self.batches = 0
        # In double precision, whatever the layer's.
        self.means: Tensor | float = 0.0

    def __enter__(self) -> None:
        self.layer.reset_running_stats()
        self.layer.forward = self._forward  # type: ignore[assignment,method-assign]

    def __exit__(self, *error: object) -> None:
        del self.layer.forward
        if self.layer.num_batches_tracked is not None:
            self.layer.num_batches_tracked.fill_(self.batches)

    def _forward(self, inputs: Tensor) -> Tensor:
        layer: Any = self.layer
        channels = inputs.transpose(0, 1).flatten(1).double()
        sums = torch.stack([channels.sum(1), channels.square().sum(1)])
        values = torch.full_like(sums[:1], channels.shape[1])
        totals = torch.cat([sums, values]) * float(self.counts)
        total, squares, count = self.reduce(totals, reduce_op="sum")
        mean = total / count
        variance = squares / count - mean.square()
        self.batches += 1
        new = torch.stack([mean, variance * count / (count - 1)])
        self.means = self.means + (new - self.means) / self.batches
        layer.running_mean.copy_(self.means[0])
        layer.running_var.copy_(self.means[1])
        statistics = mean.to(inputs.dtype), variance.to(inputs.dtype)
        return F.batch_norm(inputs, *statistics, layer.weight, layer.bias, False, 0.0, layer.eps)
