"""Displays a run in TensorBoard or in Weights & Biases: images, curves and histograms.

The displays of every task are here: its data, gradients, weights, and what it shows by itself. The
confusion matrix of a classifier is in `classification.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from matplotlib.figure import Figure
from torch import Tensor
from torch.optim import Optimizer

from ...arguments import configured_by
from ...batch.random import draw_from, global_seed, kept_state
from ...errors import UserError, say
from ...figures import image_grid
from ...optim.schedulers import steps_done
from .classification import Confusion, confusion_matrix
from .images import as_arrays, class_names, labelled, pictures, titles
from .options import Options
from .writers import find_writer

Batch = tuple[Tensor, Tensor]


@runtime_checkable
class HasDisplays(Protocol):
    """A task with displays of its own; the callback calls the method if there is one."""

    def displays(self) -> Mapping[str, str | Tensor | Figure]:
        """What is shown after a validation, by name: texts, images and figures.

        All ranks call it, in evaluation mode and without gradients; images are uint8 (C, H, W).
        """


class Displays(Callback):
    """Shows what all ranks have computed, by a logger of rank 0.

    What is off costs nothing. The confusion matrix of a task that does not classify is left out,
    with a line. The arguments are the keys of `Options`.
    """

    @configured_by(Options, "callbacks.tensorboard")
    def __init__(self, options: Options) -> None:
        self.options = options
        self._writer: Any = None
        self._is_on = False
        self._classifies = options.confusion_matrix
        self._images = options.images  # still to be shown
        self._step_shown = -1
        self._confusion: Confusion | None = None

    @property
    def state_key(self) -> str:
        """One for each logger."""
        return f"{type(self).__name__}-{self.options.writer}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the writer."""
        if stage == "fit":
            writer = find_writer(trainer, self.options.writer)
            self._is_on = writer is not None
            self._writer = writer if trainer.is_global_zero else None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Show the images of a run's first batch as the network sees them."""
        if self._is_on and self._images and not steps_done(trainer):
            strategy: Any = trainer.strategy
            shares = strategy.gather_from_replicas(_first_images(batch, self._images))
            if self._writer:
                _show_images(self._writer, trainer, shares, self._images)
        self._images = 0

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Show what a step starts from: gradients and parameters."""
        step, options = steps_done(trainer), self.options
        # A task that steps by hand may step several optimizers in a batch.
        if not self._is_on or step == self._step_shown:
            return
        self._step_shown = step
        if options.gradient_norm and step % options.scalars_every_n_steps == 0:
            norm = trainer.strategy.gradient_norm()  # type: ignore[attr-defined]
            if self._writer:
                self._writer.logger.log_metrics({"gradient_norm": norm.item()}, step)
        if options.histograms and step % options.histograms_every_n_steps == 0:
            _show_histograms(self._writer, trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self._is_on and self._classifies and fits:
            self._confusion = Confusion(pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        if self._confusion and not self._confusion.take(batch):
            self._confusion.close()
            self._confusion, self._classifies = None, False
            if self._writer:
                say(
                    f"callbacks.{self.options.writer}: confusion_matrix is left out: it needs "
                    "outputs (N, C) and labels (N,)"
                )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_on or trainer.sanity_checking:
            return
        options, epochs = self.options, trainer.current_epoch + 1
        if self._confusion:
            self._confusion.close()
            if epochs % options.figures_every_n_epochs == 0:
                self._show_confusion(trainer)
        every = options.task_every_n_epochs
        if every and isinstance(pl_module, HasDisplays) and epochs % every == 0:
            _show_task(self._writer, trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._show_confusion(trainer)

    def _show_confusion(self, trainer: Trainer) -> None:
        confusion, self._confusion = self._confusion, None
        counts = confusion.gather_from_ranks(trainer.strategy) if confusion else None
        if self._writer and counts is not None:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            figure = confusion_matrix(counts, class_names(data, len(counts)))
            self._writer.show("figure", "confusion_matrix", figure, steps_done(trainer))


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
    writer.show("figure", "images", image_grid(as_arrays(images), lines), 0)


def _show_histograms(writer: Any, trainer: Trainer) -> None:
    """Histograms of all parameters and gradients. All ranks call this; rank 0 has a writer."""
    strategy: Any = trainer.strategy
    named = [*trainer.lightning_module.named_parameters()]
    kinds: dict[str, dict[str, Tensor]] = {
        "parameters": {name: each.detach() for name, each in named if not each.is_meta},
        "gradients": {name: each.grad for name, each in named if each.grad is not None},
    }
    for kind, tensors in kinds.items():
        for name, tensor in strategy.iter_full_tensors(tensors):
            if writer:
                value = tensor.float().cpu()
                writer.show("histogram", f"{kind}/{name}", value, steps_done(trainer))


def _show_task(writer: Any, trainer: Trainer, task: HasDisplays) -> None:
    """Show what a task's `displays` returns. All ranks call this; rank 0 has a writer."""
    step = steps_done(trainer)
    with torch.no_grad(), kept_state():
        draw_from(global_seed(), step)
        shown = task.displays()
    for name, value in shown.items():
        kind = {str: "text", Figure: "figure"}.get(type(value))
        what = f"of type {type(value).__name__}"
        if isinstance(value, Tensor):
            is_image = value.dtype == torch.uint8 and value.ndim == 3 and len(value) in (1, 3)
            kind = "image" if is_image else None
            what = f"a tensor {tuple(value.shape)} of {value.dtype}"
        if kind is None:
            raise UserError(
                f"{type(task).__name__}.displays: {name!r} is {what}; return a str, a uint8 tensor "
                "(C, H, W) or a figure of matplotlib's"
            )
        if writer:
            writer.show(kind, name, value, step)
