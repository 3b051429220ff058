"""What runs are compared by: a callback and a logger note it, and change nothing."""

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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

Curve = list[tuple[int, float]]
"""Optimizer step, counted from 1, and value."""
LOSS, GRADIENT = "loss", "gradient norm"


class Watch(Callback):
    """Notes what a run is compared by, and saves a checkpoint on the way.

    Args:
        save_after: The step after which it is saved, then that after which it was; None for none.

    Attributes:
        curves: By quantity: `LOSS`, `GRADIENT` and what a logger is told.
        of_epochs: Names of what was logged over an epoch of training.
        start: The unsharded state before the first step; on rank 0, as `end`.
        end: That after the last step.
        sums: Of all numbers in each global batch.
        checkpoint: The file that was saved.
        draws: Whether a step drew random numbers.
        batchnorm: Layers that took statistics of the samples that this rank sees.
        shares: How many ranks see different samples.
    """

    def __init__(self, save_after: int | None = None) -> None:
        self.save_after = save_after
        self.curves: dict[str, Curve] = defaultdict(list)
        self.of_epochs: set[str] = set()
        self.start: dict[str, Tensor] = {}
        self.end: dict[str, Tensor] = {}
        self.sums: Curve = []
        self.checkpoint: Path | None = None
        self.draws = False
        self.batchnorm: list[str] = []
        self.shares = 1
        self.step = 0
        self.is_epoch_over = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: nn.Module, batch: Any, batch_idx: int
    ) -> None:
        if not self.sums:  # after the task's own on_train_start
            self.start = _state(trainer)
            self.shares = getattr(trainer.strategy, "data_parallel_size", trainer.world_size)
        parts = {n: part for n, part in pl_module.named_modules() if isinstance(part, _BatchNorm)}
        of_rank = {n: part for n, part in parts.items() if not isinstance(part, nn.SyncBatchNorm)}
        self.batchnorm = [name for name, part in of_rank.items() if part.training]
        self.is_epoch_over = False
        self.step = trainer.global_step + 1
        self._random = _random_state()

    def on_before_optimizer_step(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        norm = trainer.strategy.gradient_norm()  # type: ignore[attr-defined]
        self.curves[GRADIENT].append((trainer.global_step + 1, float(norm)))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.draws |= _random_state() != self._random
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):  # a rank's is weighed by its share already
            self.curves[LOSS].append((self.step, _mean(trainer, loss.detach())))
        leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        numbers = torch.zeros((), dtype=torch.float64, device=pl_module.device)
        numbers += sum(leaf.detach().double().sum() for leaf in leaves)
        self.sums.append((self.step, _mean(trainer, numbers) * self.shares))
        if self.save_after and trainer.global_step >= self.save_after and not self.checkpoint:
            self.save_after = trainer.global_step
            folder = tempfile.mkdtemp(prefix="parity-") if trainer.is_global_zero else None
            self.checkpoint = Path(trainer.strategy.broadcast(folder), "middle.ckpt")
            trainer.save_checkpoint(self.checkpoint)

    def on_train_epoch_end(self, *_: Any, **__: Any) -> None:
        self.is_epoch_over = True

    def on_train_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.end = _state(trainer)
        for name, value in trainer.callback_metrics.items():
            if name not in self.curves:  # logged with logger=False
                self.curves[name].append((self.step, float(value)))


class Log(DummyLogger):
    """Notes what is logged. Lightning calls it on the first rank alone."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # type: ignore[override]
        # Batches of an evaluation have a count of steps of their own.
        for name in [name for name in metrics if name != "epoch"]:
            self.watch.curves[name].append((self.watch.step, float(metrics[name])))
            if self.watch.is_epoch_over:
                self.watch.of_epochs.add(name)


def _mean(trainer: Trainer, value: Tensor) -> float:
    return float(trainer.strategy.reduce(value, reduce_op="mean"))


def _state(trainer: Trainer) -> dict[str, Tensor]:
    state = trainer.strategy.lightning_module_state_dict()
    return {n: v.detach().cpu().clone() for n, v in state.items() if isinstance(v, Tensor)}


def _random_state() -> bytes:
    """Where the generators stand that a step draws from."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    drawn = b"".join(state.numpy().tobytes() for state in [torch.get_rng_state(), *states])
    return drawn + repr((random.getstate(), np.random.get_state(legacy=False))).encode()
