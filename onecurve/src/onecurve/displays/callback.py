"""Displays a run in TensorBoard or in Weights & Biases: images, curves and histograms."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

from ..errors import say
from . import overview
from .classification import Collector, show_results
from .options import Options
from .overview import HasDisplays
from .writers import find_writer


class Displays(Callback):
    """Shows what all ranks have computed, by a logger of rank 0.

    What is off costs nothing. Displays of classification are left out, with a line, for other
    tasks.

    Args:
        writer: The logger that shows them: "tensorboard" or "wandb".
        run_dir: The run directory, in which are the command and the configuration.
        options: The other keys of `Options`.
    """

    def __init__(self, writer: str, run_dir: str, **options: Any) -> None:
        self.run_dir = Path(run_dir)
        self.options = Options(writer=writer, run_dir=run_dir, **options)
        self._writer: Any = None
        self._is_on = False
        self._is_new = False
        self._names_wanted = False
        self._classifies = True
        self._collector: Collector | None = None

    @property
    def state_key(self) -> str:
        """One for each logger."""
        return f"{type(self).__name__}-{self.options.writer}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the writer; draw the graph before the network is sharded or split."""
        if stage != "fit":
            return
        writer = find_writer(trainer, self.options.writer)
        self._is_on = writer is not None
        is_new = writer is not None and not writer.logger.goes_on
        # Rank 0's answer counts: it may have begun the run by now.
        self._is_new = self._names_wanted = trainer.strategy.broadcast(is_new)
        self._writer = writer if trainer.is_global_zero else None
        if self.options.graph and self._is_new:
            example = trainer.strategy.example_inputs()  # type: ignore[attr-defined]
            if self._writer:
                overview.show_graph(self._writer, pl_module, example)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._writer and self._is_new and self.options.text:
            overview.show_text(self._writer, self.run_dir)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Show the images of the first batch as the network sees them."""
        if self._is_new and (count := self.options.images):
            strategy: Any = trainer.strategy
            shares = strategy.of_all_samples(overview.first_images(batch, count))
            if self._writer:
                overview.show_images(self._writer, trainer, shares, count)
        self._is_new = False

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Show what a step starts from: learning rates, gradients and parameters."""
        if not self._is_on:
            return
        step, options = trainer.global_step, self.options
        if step % options.scalars_every_n_steps == 0:
            values = overview.learning_rates(trainer) if options.learning_rates else {}
            if options.gradient_norm:
                norm = trainer.strategy.gradient_norm()  # type: ignore[attr-defined]
                values["gradient_norm"] = norm.item()
            if self._writer and values:
                self._writer.logger.log_metrics(values, step)
        if options.histograms and step % options.histograms_every_n_steps == 0:
            overview.show_histograms(self._writer, trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to collect predictions."""
        shown = self.options
        wanted = shown.confusion_matrix or shown.pr_curves or shown.predictions or shown.embedding
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self._is_on and self._classifies and wanted and fits:
            self._collector = Collector(pl_module, worst=shown.predictions, first=shown.embedding)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._collector and not self._collector.take(batch, trainer.strategy):
            self._collector.close()
            self._collector = None
            self._classifies = False
            if self._writer:
                say(
                    f"callbacks.{self.options.writer}: confusion_matrix, pr_curves, predictions "
                    "and embedding are left out: they need outputs (N, C) and labels (N,)"
                )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_on or trainer.sanity_checking:
            return
        options, epochs = self.options, trainer.current_epoch + 1
        if self._collector:
            self._collector.close()
            if epochs % options.figures_every_n_epochs == 0:
                self._show_collected(trainer)
        if self._names_wanted and self._writer:
            # Only now it is known what the task logs.
            names = overview.logged_names(trainer)
            if options.charts:
                self._writer.charts(names)
            if options.hparams:
                self._writer.hparams(overview.overrides(self.run_dir), names)
        self._names_wanted = False
        every = options.task_every_n_epochs
        if every and isinstance(pl_module, HasDisplays) and epochs % every == 0:
            overview.show_task(self._writer, trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._show_collected(trainer)

    def _show_collected(self, trainer: Trainer) -> None:
        collector, self._collector = self._collector, None
        results = collector.of_all_ranks(trainer.strategy) if collector else None
        if self._writer and results:
            show_results(self._writer, results, trainer, self.options)
