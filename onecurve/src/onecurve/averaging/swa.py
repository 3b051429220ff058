"""Stochastic weight averaging (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407)."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from ..arguments import configured_by
from ..compat.of_torch import BatchNorm, batch_norm_statistics
from ..errors import UserError
from ..optim.schedulers import steps_done, steps_in_all
from ..strategies.batchnorm import Call, computed_by, normalized, over_ranks
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
        self.options = options
        self.final_weights: str | None = None
        self._lrs: list[list[float]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        batches = trainer.num_training_batches
        self._steps_an_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
        if math.isinf(self._first_step(trainer)):
            raise UserError(
                f"callbacks.swa.start={self.options.start:g}: is a fraction of a run, and this run "
                "has no end; give a number of epochs, such as callbacks.swa.start=10"
            )
        super().on_train_start(trainer, pl_module)

    def _first_step(self, trainer: Trainer) -> float:
        start = self.options.start
        return start * (steps_in_all(trainer) if start < 1 else self._steps_an_epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the learning rate of this phase, in place of the scheduler's."""
        options, steps = self.options, steps_done(trainer) - self._first_step(trainer)
        if options.lr is None or steps < 0:
            return
        if not self._lrs:
            optimizers = trainer.optimizers
            self._lrs = [[float(group["lr"]) for group in each.param_groups] for each in optimizers]
        epochs = steps / self._steps_an_epoch
        share = min(1.0, epochs / options.anneal_epochs) if options.anneal_epochs else 1.0
        if options.annealing == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        for optimizer, before in zip(trainer.optimizers, self._lrs, strict=True):
            for group, lr in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = lr + share * (options.lr * lr / before[0] - lr)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, first = steps_done(trainer), self._first_step(trainer)
        if not self.has_stepped(trainer) or step <= first:
            return
        if self.options.every_n_steps:
            is_due = (step - math.floor(first)) % self.options.every_n_steps == 0
        else:
            is_due = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if is_due:
            self.average.add(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the average, with its own BatchNorm statistics."""
        if not self.average.count:
            if trainer.is_global_zero:
                start = f"callbacks.swa.start={self.options.start:g}"
                print(f"swa: the run ended before {start}: no average")
            return
        buffers = {n: each.clone() for n, each in pl_module.named_buffers() if not each.is_meta}
        with self.average.in_place(pl_module):
            recompute_statistics(trainer)
            self.is_saving = True
            trainer.save_checkpoint(self.options.file)
            self.is_saving = False
        for name, buffer in pl_module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
        self.final_weights = self.options.file

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "lrs": self._lrs}

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
            self._restored = average


def _count(state: dict[str, Any]) -> int:
    count: int = state.get("count", state.get("n_averaged", 0))
    return count


@torch.no_grad()
def recompute_statistics(trainer: Trainer) -> None:
    """Recompute BatchNorm statistics in one pass over the training data. No weight changes.

    No forward pass of training has used the average. As in `torch.optim.swa_utils.update_bn` they
    are the average over batches of each batch's mean and variance, here of the global batch.
    Dropout is off.
    """
    module: Any = trainer.lightning_module
    layers = [submodule for submodule in module.modules() if isinstance(submodule, BatchNorm)]
    if not layers:
        return
    strategy: Any = trainer.strategy
    # Those of other stages are on the meta device.
    means = [layer.running_mean for layer in layers]
    batches = {id(mean): 0 for mean in means if mean is not None and not mean.is_meta}
    layers = [layer for layer in layers if id(layer.running_mean) in batches]
    counts = True

    def compute(call: Call) -> Any:
        """Normalize by the statistics of the global batch, and average them."""
        running_mean, running_var = call.running_mean, call.running_var
        if running_mean is None or running_var is None or id(running_mean) not in batches:
            return None
        count = call.input.numel() // call.input.shape[1] if counts else 0
        here = batch_norm_statistics(call.input)
        mean, variance, total = over_ranks(*here, count, strategy.samples_group)
        batches[id(running_mean)] += 1
        share = 1 / batches[id(running_mean)]
        running_mean.lerp_(mean.to(running_mean.dtype), share)
        running_var.lerp_((variance * (total / (total - 1))).to(running_var.dtype), share)
        return normalized(call.input, mean, variance, call.weight, call.bias, call.eps)

    was_training = module.training
    module.eval()
    for layer in layers:
        layer.reset_running_stats()
    with computed_by(compute):
        for batch, counts in strategy.training_batches():  # noqa: B007 (for `compute`)
            strategy.forward_only(batch)
    module.train(was_training)
    for layer in layers:
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.fill_(batches[id(layer.running_mean)])
