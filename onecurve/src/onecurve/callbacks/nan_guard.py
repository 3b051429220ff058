"""Stops at the first value that is not finite, and says where it came from."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..compat.of_torch import tree_leaves, tree_map_only
from ..errors import UserError


class Finding(NamedTuple):
    """Where a value is not finite; the smallest of several is where it came from."""

    stage: int
    """0: what enters the network; 1: parameters; 2: outputs of a layer; 3: gradients."""
    position: int
    """Among the layers or parameters; for gradients from the last one backwards."""
    what: str


class NanGuard(Callback):
    """Looks at the loss and at the norm of all gradients before every step.

    If one is not finite the batch goes through the network again, with an eye on every layer. The
    run ends before the step: the weights are those that the batch met. With ``16-mixed`` only the
    loss is looked at, since the scaler of gradients expects some that are not finite.

    Args:
        file: Where the batch is saved, with the step: `torch.load` reads it.
        checkpoint: Where the weights are saved.
        every_n_steps: How often to look: on a GPU a look waits for the device.

    Raises:
        UserError: In the step, on every rank.
    """

    def __init__(self, file: str, checkpoint: str, every_n_steps: int = 1) -> None:
        self.file = Path(file)
        self.checkpoint = checkpoint
        self.every_n_steps = every_n_steps
        self._batch: Any = None
        self._loss: Tensor | None = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Keep hold of the loss: looking at it waits for the device."""
        self._loss = loss.detach()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Look, and end the run if a rank sees something."""
        if trainer.global_step % self.every_n_steps:
            return
        strategy: Any = trainer.strategy
        is_fine = self._loss is None or bool(self._loss.isfinite())
        if not str(trainer.precision).startswith("16"):
            is_fine = bool(strategy.gradient_norm().isfinite()) and is_fine
        if strategy.reduce_boolean_decision(is_fine):
            return
        trainer.save_checkpoint(self.checkpoint, weights_only=True)
        finding = self._find(pl_module, strategy)
        shares = strategy.of_all_samples(tree_map_only(Tensor, torch.Tensor.cpu, self._batch))
        if trainer.is_global_zero:
            torch.save({"step": trainer.global_step, "batch": shares}, self.file)
        where = finding.what if finding else "the loss, not the network"
        raise UserError(
            f"callbacks.nan_guard: step {trainer.global_step}: a value is not finite, first in "
            f"{where}; the batch is in {self.file}, the weights before the step in "
            f"{self.checkpoint}; try a smaller optimizer.lr, or trainer.gradient_clip_val=1.0"
        )

    def _find(self, module: LightningModule, strategy: Any) -> Finding | None:
        """What is not finite first, of what all ranks see."""
        findings = [*_in_inputs(self._batch), *_in_parameters(module)]
        with _Watch(module) as watch:
            strategy.forward_only(self._batch)
        findings += [*watch.findings, *_in_gradients(module)]
        everywhere = strategy.of_all_ranks(sorted(findings)[:1])
        found = sorted(each for rank in everywhere for each in rank)
        return Finding(*found[0]) if found else None


class _Watch:
    """Looks at what each layer returns."""

    def __init__(self, module: nn.Module) -> None:
        self.layers = [
            (position, name, layer)
            for position, (name, layer) in enumerate(module.named_modules())
            if not list(layer.children())
        ]
        self.findings: list[Finding] = []

    def __enter__(self) -> "_Watch":
        self._hooks = [
            layer.register_forward_hook(self._look(position, f"what layer {name} returns"))
            for position, name, layer in self.layers
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _look(self, position: int, what: str) -> Any:
        def look(layer: nn.Module, inputs: Any, outputs: Any) -> None:
            if not _is_finite(outputs):
                self.findings.append(Finding(2, position, what))

        return look


def _in_inputs(batch: Any) -> list[Finding]:
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    return [] if _is_finite(inputs) else [Finding(0, 0, "the batch itself")]


def _in_parameters(module: nn.Module) -> list[Finding]:
    return [
        Finding(1, position, f"parameter {name}")
        for position, (name, parameter) in enumerate(module.named_parameters())
        if not parameter.is_meta and not _is_finite(_local(parameter))
    ]


def _in_gradients(module: nn.Module) -> list[Finding]:
    return [
        Finding(3, -position, f"the gradient of {name}")
        for position, (name, parameter) in enumerate(module.named_parameters())
        if parameter.grad is not None and not _is_finite(_local(parameter.grad))
    ]


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _is_finite(values: Any) -> bool:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return all(bool(each.isfinite().all()) for each in tensors if each.is_floating_point())
