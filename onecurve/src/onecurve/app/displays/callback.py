"""Displays a run in TensorBoard or in Weights & Biases: images, curves and histograms.

The displays of every task are here: its configuration, data, weights, and what it shows by itself.
Those of classification are in `classification.py`.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.trainer.states import TrainerFn
from matplotlib.figure import Figure
from torch import Tensor
from torch.optim import Optimizer

from ...arguments import configured_by
from ...batch.random import draw_from, global_seed, kept_state
from ...errors import UserError, say
from ...figures import image_grid
from ...optim.steps import steps_done
from .classification import Collector, show_results
from .images import as_arrays, labelled, pictures, titles
from .options import Options
from .writers import find_writer

Batch = tuple[Tensor, Tensor]


class Displays(Callback):
    """Shows what all ranks have computed, by a logger of rank 0.

    What is off costs nothing. Displays of classification are left out, with a line, for other
    tasks. The arguments are the keys of `Options`.
    """

    @configured_by(Options, "callbacks.tensorboard")
    def __init__(self, options: Options) -> None:
        self.run_dir = Path(options.run_dir)
        self.options = options
        self._writer: Any = None
        files = {"wandb": "wandb/*run-*-*", "tensorboard": "**/events.out.tfevents.*"}[
            options.writer
        ]
        self._is_resumed = any(self.run_dir.glob(files))
        self._is_on = False
        self._is_new = False
        self._classifies = True
        self._step_shown = -1
        self._collector: Collector | None = None

    @property
    def state_key(self) -> str:
        """One for each logger."""
        return f"{type(self).__name__}-{self.options.writer}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the writer, and whether the run is a new one."""
        if stage != "fit":
            return
        writer = find_writer(trainer, self.options.writer)
        self._is_on = writer is not None
        is_new = writer is not None and not self._is_resumed
        # Rank 0's answer counts: it may have begun the run by now.
        self._is_new = trainer.strategy.broadcast(is_new)
        self._writer = writer if trainer.is_global_zero else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._writer and self._is_new and self.options.text:
            _show_text(self._writer, self.run_dir)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Show the images of the first batch as the network sees them."""
        if self._is_new and (count := self.options.images):
            strategy: Any = trainer.strategy
            shares = strategy.of_all_samples(_first_images(batch, count))
            if self._writer:
                _show_images(self._writer, trainer, shares, count)
        self._is_new = False

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Show what a step starts from: learning rates, gradients and parameters."""
        step, options = steps_done(trainer), self.options
        # A task that steps by hand may step several optimizers in a batch.
        if not self._is_on or step == self._step_shown:
            return
        self._step_shown = step
        if step % options.scalars_every_n_steps == 0:
            values = _learning_rates(trainer) if options.learning_rates else {}
            if options.gradient_norm:
                norm = trainer.strategy.gradient_norm()  # type: ignore[attr-defined]
                values["gradient_norm"] = norm.item()
            if self._writer and values:
                self._writer.logger.log_metrics(values, step)
        if options.histograms and step % options.histograms_every_n_steps == 0:
            _show_histograms(self._writer, trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        shown = self.options
        wanted = shown.confusion_matrix or shown.pr_curves or shown.predictions
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self._is_on and self._classifies and wanted and fits:
            self._collector = Collector(pl_module, worst=shown.predictions)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        if self._collector and not self._collector.take(batch, trainer.strategy):
            self._collector.close()
            self._collector = None
            self._classifies = False
            if self._writer:
                say(
                    f"callbacks.{self.options.writer}: confusion_matrix, pr_curves and "
                    "predictions are left out: they need outputs (N, C) and labels (N,)"
                )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_on or trainer.sanity_checking:
            return
        options, epochs = self.options, trainer.current_epoch + 1
        if self._collector:
            self._collector.close()
            if epochs % options.figures_every_n_epochs == 0:
                self._show_collected(trainer)
        every = options.task_every_n_epochs
        if every and isinstance(pl_module, HasDisplays) and epochs % every == 0:
            _show_task(self._writer, trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._show_collected(trainer)

    def _show_collected(self, trainer: Trainer) -> None:
        collector, self._collector = self._collector, None
        results = collector.of_all_ranks(trainer.strategy) if collector else None
        if self._writer and results:
            show_results(self._writer, results, trainer, self.options)


def _show_text(writer: Any, run_dir: Path) -> None:
    environment = json.loads((run_dir / "environment.json").read_text())
    writer.text("command", shlex.join(environment["command"]))
    writer.text("configuration", (run_dir / "config.yaml").read_text())


def _first_images(batch: Any, count: int) -> Batch | None:
    """The first images of a batch with their targets, on the CPU; None for other batches."""
    pair = labelled(batch)
    if not pair or pair[0].ndim != 4 or pair[0].shape[:1] != pair[1].shape[:1]:
        return None
    return pair[0][:count].cpu(), pair[1][:count].cpu()


def _show_images(writer: Any, trainer: Trainer, shares: Sequence[Batch | None], count: int) -> None:
    """Images as the network sees them, each with the name of its class, or its caption."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    images = lines = None
    if known := [share for share in shares if share is not None]:
        inputs, targets = (torch.cat(parts)[:count] for parts in zip(*known, strict=True))
        images, lines = pictures(inputs, data), titles(targets, data)
    if images is None or lines is None:
        say("callbacks: images are left out: a batch must be (images (N, C, H, W), labels (N,))")
        return
    writer.figure("images", image_grid(as_arrays(images), lines), 0)


def _learning_rates(trainer: Trainer) -> dict[str, float]:
    """One for each parameter group; none if the callback lr_monitor logs them."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if any(isinstance(callback, LearningRateMonitor) for callback in callbacks):
        return {}
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    names = [group.get("name", str(number)) for number, group in enumerate(groups)]
    if len(groups) == 1:
        return {"learning_rate": float(groups[0]["lr"])}
    return {
        f"learning_rate/{name}": float(group["lr"])
        for name, group in zip(names, groups, strict=True)
    }


def _show_histograms(writer: Any, trainer: Trainer) -> None:
    """Histograms of all parameters and gradients. All ranks call this; rank 0 has a writer."""
    strategy: Any = trainer.strategy
    named = [*trainer.lightning_module.named_parameters()]
    kinds: dict[str, dict[str, Tensor]] = {
        "parameters": {name: each.detach() for name, each in named if not each.is_meta},
        "gradients": {name: each.grad for name, each in named if each.grad is not None},
    }
    for kind, tensors in kinds.items():
        for name, tensor in strategy.each_whole(tensors):
            if writer:
                writer.histogram(f"{kind}/{name}", tensor.float().cpu(), steps_done(trainer))


@runtime_checkable
class HasDisplays(Protocol):
    """A task with displays of its own; the callback calls the method if there is one."""

    def displays(self) -> Mapping[str, str | Tensor | Figure]:
        """What to show, by name: a text, an image (uint8, (C, H, W)) or a figure of matplotlib's.

        Every rank calls this at the end of a validation, in evaluation mode and without gradients,
        and it may call `self(...)`; what rank 0 returns is shown. Random numbers are the same on
        all ranks, and those of training are not affected.
        """


def _show_task(writer: Any, trainer: Trainer, task: HasDisplays) -> None:
    """Show what a task's `displays` returns. All ranks call this; rank 0 has a writer."""
    step = steps_done(trainer)
    with torch.no_grad(), kept_state():
        draw_from(global_seed(), step)
        shown = task.displays()
    for name, value in shown.items():
        kind = _kind(value)
        if kind is None:
            raise UserError(
                f"{type(task).__name__}.displays: {name!r} is {_described(value)}; "
                "return a str, a uint8 tensor (C, H, W) or a figure of matplotlib's"
            )
        if writer:
            getattr(writer, kind)(name, value, step)


def _kind(value: Any) -> str | None:
    """The method of a writer for it; None if there is none."""
    if isinstance(value, Tensor):
        is_image = value.dtype == torch.uint8 and value.ndim == 3 and value.shape[0] in (1, 3)
        return "image" if is_image else None
    if isinstance(value, str):
        return "text"
    return "figure" if isinstance(value, Figure) else None


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    return f"of type {type(value).__name__}"
