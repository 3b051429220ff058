"""A callback and a logger that record the quantities to compare."""

import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.optim import Optimizer

from ..compat.of_torch import BatchNorm, tensor_leaves
from ..strategies.mesh.sizes import Sizes

Curve = list[tuple[int, float]]
"""Optimizer step, counted from 1, and value."""
LOSS, GRADIENT = "loss", "gradient norm"


class Watch(Callback):
    """Records a run, and saves a checkpoint after step `save_after`, if given."""

    def __init__(self, save_after: int | None = None) -> None:
        self.save_after = save_after
        self.checkpoint: Path | None = None
        # Curves by quantity, and the sum of all numbers in each global batch.
        self.curves: dict[str, Curve] = defaultdict(list)
        self.sums: Curve = []
        # Names of values that were logged for an epoch of training.
        self.of_epochs: set[str] = set()
        # Unsharded states before the first step and after the last one, on rank 0.
        self.start: dict[str, Tensor] = {}
        self.end: dict[str, Tensor] = {}
        # The names of parameters among them; whole for a plain Trainer.
        self.parameters: set[str] = set()
        # Whether a step drew random numbers, and whether BatchNorm used statistics of one rank.
        self.draws, self.batchnorm = False, False
        self.draws_in_validation = False
        # Whether the loss had a lower precision than the run, and whether batches were accumulated.
        self.is_coarse, self.accumulates = False, False
        # How many ranks see different samples, share layers, and share sequences.
        self.shares, self.tensor, self.context = 1, 1, 1
        self.step, self.is_epoch_over = 0, False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self.sums:  # after the task's own on_train_start
            self.start = _state(trainer)
            self.parameters = {name for name, _ in pl_module.named_parameters()}
            self.shares = getattr(trainer.strategy, "data_parallel_size", trainer.world_size)
            sizes = getattr(trainer.strategy, "sizes", Sizes())
            self.tensor, self.context = sizes.tensor, sizes.context
        self.batchnorm = any(
            isinstance(part, BatchNorm) and not isinstance(part, nn.SyncBatchNorm)
            for part in pl_module.modules()
            if part.training
        )
        self.step, self.is_epoch_over = trainer.global_step + 1, False
        self.accumulates |= trainer.accumulate_grad_batches > 1
        # Computed now, because the step may change its batch in place.
        leaves = tensor_leaves(batch)
        numbers = torch.zeros((), dtype=torch.float64, device=pl_module.device)
        numbers += sum(leaf.detach().double().sum() for leaf in leaves)
        self.sums.append((self.step, _mean(trainer, numbers) * self.shares))
        self._random = _random_state()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: nn.Module, optimizer: Optimizer
    ) -> None:
        # Without gradients of other optimizers, which are not part of this step.
        norm = trainer.strategy.gradient_norm(optimizer)  # type: ignore[attr-defined]
        self.curves[GRADIENT].append((trainer.global_step + 1, float(norm)))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.draws |= _random_state() != self._random
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self.curves[LOSS].append((self.step, _mean(trainer, loss.detach())))
            self.is_coarse |= loss.dtype != torch.float64
        if self.save_after and trainer.global_step >= self.save_after and not self.checkpoint:
            self.save_after = trainer.global_step
            folder = tempfile.mkdtemp(prefix="parity-") if trainer.is_global_zero else ""
            self.checkpoint = Path(trainer.strategy.broadcast(folder), "middle.ckpt")
            trainer.save_checkpoint(self.checkpoint)

    def on_validation_batch_start(self, *_: Any, **__: Any) -> None:
        self._random = _random_state()

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self.draws_in_validation |= _random_state() != self._random

    def on_train_epoch_end(self, *_: Any, **__: Any) -> None:
        self.is_epoch_over = True

    def on_train_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.end = _state(trainer)
        for name, value in trainer.callback_metrics.items():
            # Values logged with logger=False. Names with both a step and an epoch value are known.
            if not self.curves.keys() & {logged(name), f"{name}_epoch"}:
                self.curves[logged(name)].append((self.step, float(value)))


class Log(DummyLogger):
    """Passes logged values to a `Watch`. Lightning calls it on the first rank only."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        # By training steps: evaluations count their own batches.
        for name in [name for name in metrics if name != "epoch"]:
            self.watch.curves[logged(name)].append((self.watch.step, float(metrics[name])))
            if self.watch.is_epoch_over:
                self.watch.of_epochs.add(logged(name))


def logged(name: str) -> str:
    """What a logged value is called beside the quantities that are watched in any case."""
    return f"{name}, logged" if name in (LOSS, GRADIENT) else name


def _mean(trainer: Trainer, value: Tensor) -> float:
    return float(trainer.strategy.reduce(value, reduce_op="mean"))


def _state(trainer: Trainer) -> dict[str, Tensor]:
    state = trainer.strategy.lightning_module_state_dict()
    return {n: v.detach().cpu().clone() for n, v in state.items() if isinstance(v, Tensor)}


def _random_state() -> bytes:
    """The states of the generators that a step may draw from."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    drawn = b"".join(state.numpy().tobytes() for state in [torch.get_rng_state(), *states])
    return drawn + repr((random.getstate(), np.random.get_state(legacy=False))).encode()
