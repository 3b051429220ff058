"""Stops training at the first value that is not finite, and reports where it came from."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..arguments import configured_by
from ..compat.of_torch import tensor_leaves, tree_map_only
from ..errors import UserError
from ..optim.schedulers import steps_done
from .options import NanGuardOptions

# Where a value is not finite: 0 for inputs of the network, 1 for parameters, 2 for outputs of a
# layer, 3 for gradients; then the index of the layer or parameter, of gradients from the last. The
# smallest of all ranks is the origin.
Finding = tuple[int, int, str]


class NanGuard(Callback):
    """Checks the loss and the norm of all gradients before every step.

    If one is not finite the batch passes through the network again while every layer is checked.
    The run ends before the step, so the weights are those of the forward pass. With ``16-mixed``
    only the loss is checked: the gradient scaler expects some gradients that are not finite. On a
    GPU a check waits for the device. `torch.load` reads the file of the batch.

    Raises:
        UserError: In the step, on every rank.
    """

    @configured_by(NanGuardOptions, "callbacks.nan_guard")
    def __init__(self, options: NanGuardOptions) -> None:
        self.file = Path(options.file)
        self.checkpoint = options.checkpoint
        self.every_n_steps = options.every_n_steps
        self._batch: Any = None
        self._loss: Tensor | None = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Keep the loss; checking it waits for the device."""
        self._loss = loss.detach()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        if steps_done(trainer) % self.every_n_steps:
            return
        strategy: Any = trainer.strategy
        is_fine = self._loss is None or bool(self._loss.isfinite())
        if not str(trainer.precision).startswith("16"):
            is_fine = bool(strategy.gradient_norm().isfinite()) and is_fine
        if strategy.reduce_boolean_decision(is_fine):
            return
        trainer.save_checkpoint(self.checkpoint, weights_only=True)
        where = self._find(pl_module, strategy) or "the loss, not the network"
        shares = strategy.gather_from_replicas(tree_map_only(Tensor, torch.Tensor.cpu, self._batch))
        if trainer.is_global_zero:
            torch.save({"step": steps_done(trainer), "batch": shares}, self.file)
        raise UserError(
            f"callbacks.nan_guard: step {steps_done(trainer)}: a value is not finite, first in "
            f"{where}; the batch is in {self.file}, the weights before the step in "
            f"{self.checkpoint}; try a smaller optimizer.lr, or trainer.gradient_clip_val=1.0"
        )

    def _find(self, module: LightningModule, strategy: Any) -> str | None:
        inputs = self._batch[0] if isinstance(self._batch, tuple | list) else self._batch
        findings: list[Finding] = [] if _is_finite(inputs) else [(0, 0, "the batch itself")]
        for position, (name, parameter) in enumerate(module.named_parameters()):
            if not _is_finite(parameter):
                findings.append((1, position, f"parameter {name}"))
            if not _is_finite(parameter.grad):
                findings.append((3, -position, f"the gradient of {name}"))

        def check(position: int, name: str, layer: nn.Module, _: Any, outputs: Any) -> None:
            if not _is_finite(outputs):
                findings.append((2, position, f"what layer {name} returns"))

        with ExitStack() as hooks:
            for position, (name, layer) in enumerate(module.named_modules()):
                if not list(layer.children()):
                    hook = layer.register_forward_hook(partial(check, position, name))
                    hooks.callback(hook.remove)
            strategy.forward_only(self._batch)
        everywhere = strategy.gather_from_ranks(sorted(findings)[:1])
        first = min((each for rank in everywhere for each in rank), default=None)
        return first[2] if first else None


def _is_finite(values: Any) -> bool:
    """Whether all numbers are finite that this rank holds."""
    for each in tensor_leaves(values):
        local = each.to_local() if isinstance(each, DTensor) else each.detach()
        if local.is_floating_point() and not local.is_meta and not local.isfinite().all():
            return False
    return True
