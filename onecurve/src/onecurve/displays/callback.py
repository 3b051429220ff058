"""Displays a run in TensorBoard or in Weights & Biases: images, curves and histograms."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

from ..errors import say
from . import overview
from .classification import Collector
from .overview import HasDisplays


class Displays(Callback):
    """Shows what all ranks have computed, by a logger of rank 0.

    What is off costs nothing. Displays of classification are left out, with a line, for other
    tasks.

    Args:
        writer: The logger that shows them: "tensorboard" or "wandb".
        run_dir: The run directory, in which are the command and the configuration.
        charts: Training and validation of the same metric in one chart. TensorBoard alone.
        text: The command and the resolved configuration.
        hparams: The overrides of the command line beside the final metrics. TensorBoard alone.
        graph: The modules and the tensors between them. TensorBoard alone.
        images: How many training images to show, with their class; 0 for none.
        learning_rates: One for each parameter group, unless the callback lr_monitor is there.
        gradient_norm: That of all gradients, before clipping.
        histograms: Parameters and gradients.
        confusion_matrix: Counts of the validation set.
        pr_curves: Precision against recall, for each class.
        predictions: How many validation samples to show, of the largest loss; 0 for none.
        embedding: How many validation samples to place in the projector by the features that enter
            the last layer; 0 for none. TensorBoard alone.
        scalars_every_n_steps: How often learning rates and gradient norm are shown.
        histograms_every_n_steps: How often histograms are; all weights are gathered on rank 0.
        figures_every_n_epochs: How often displays of validation are shown; also at the end.
        task_every_n_epochs: How often a task's own are shown, if it has a method `displays`
            (`overview.HasDisplays`); 0 for never.
    """

    def __init__(
        self,
        writer: str,
        run_dir: str,
        *,
        charts: bool = False,
        text: bool = False,
        hparams: bool = False,
        graph: bool = False,
        images: int = 0,
        learning_rates: bool = False,
        gradient_norm: bool = False,
        histograms: bool = False,
        confusion_matrix: bool = False,
        pr_curves: bool = False,
        predictions: int = 0,
        embedding: int = 0,
        scalars_every_n_steps: int = 10,
        histograms_every_n_steps: int = 100,
        figures_every_n_epochs: int = 5,
        task_every_n_epochs: int = 1,
    ) -> None:
        self.writer_name = writer
        self.run_dir = Path(run_dir)
        self.charts = charts
        self.text = text
        self.hparams = hparams
        self.graph = graph
        self.images = images
        self.learning_rates = learning_rates
        self.gradient_norm = gradient_norm
        self.histograms = histograms
        self.confusion_matrix = confusion_matrix
        self.pr_curves = pr_curves
        self.predictions = predictions
        self.embedding = embedding
        self.scalars_every_n_steps = scalars_every_n_steps
        self.histograms_every_n_steps = histograms_every_n_steps
        self.figures_every_n_epochs = figures_every_n_epochs
        self.task_every_n_epochs = task_every_n_epochs
        self._writer: Any = None
        self._is_on = False
        self._is_new = False
        self._names_wanted = False
        self._classifies = True
        self._collector: Collector | None = None

    @property
    def state_key(self) -> str:
        """One for each logger."""
        return f"{type(self).__name__}-{self.writer_name}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the writer; draw the graph before the network is sharded or split."""
        if stage != "fit":
            return
        from .writers import find_writer

        writer = find_writer(trainer, self.writer_name)
        self._is_on = writer is not None
        is_new = writer is not None and not writer.goes_on
        # Rank 0's answer counts: it may have begun the run by now.
        self._is_new = self._names_wanted = trainer.strategy.broadcast(is_new)
        self._writer = writer if trainer.is_global_zero else None
        if self.graph and self._is_new:
            example = trainer.strategy.example_inputs()  # type: ignore[attr-defined]
            if self._writer:
                overview.show_graph(self._writer, pl_module, example)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._writer and self._is_new and self.text:
            overview.show_text(self._writer, self.run_dir)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Show the images of the first batch as the network sees them."""
        if self._is_new and self.images:
            strategy: Any = trainer.strategy
            shares = strategy.of_all_samples(overview.first_images(batch, self.images))
            if self._writer:
                overview.show_images(self._writer, trainer, shares, self.images)
        self._is_new = False

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Show what a step starts from: learning rates, gradients and parameters."""
        if not self._is_on:
            return
        step = trainer.global_step
        if step % self.scalars_every_n_steps == 0:
            values = overview.learning_rates(trainer) if self.learning_rates else {}
            if self.gradient_norm:
                norm = trainer.strategy.gradient_norm()  # type: ignore[attr-defined]
                values["gradient_norm"] = norm.item()
            if self._writer and values:
                self._writer.scalars(values, step)
        if self.histograms and step % self.histograms_every_n_steps == 0:
            overview.show_histograms(self._writer, trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to collect predictions."""
        wanted = self.confusion_matrix or self.pr_curves or self.predictions or self.embedding
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self._is_on and self._classifies and wanted and fits:
            self._collector = Collector(pl_module, worst=self.predictions, first=self.embedding)

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
                    f"callbacks.{self.writer_name}: confusion_matrix, pr_curves, predictions and "
                    "embedding are left out: they need outputs (N, C) and labels (N,)"
                )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_on or trainer.sanity_checking:
            return
        if self._collector:
            self._collector.close()
            if (trainer.current_epoch + 1) % self.figures_every_n_epochs == 0:
                self._show_collector(trainer)
        if self._names_wanted and self._writer:
            # Only now it is known what the task logs.
            overview.show_names(self._writer, trainer, self.run_dir, self.charts, self.hparams)
        self._names_wanted = False
        every = self.task_every_n_epochs
        if every and isinstance(pl_module, HasDisplays) and not (trainer.current_epoch + 1) % every:
            overview.show_task(self._writer, trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._show_collector(trainer)

    def _show_collector(self, trainer: Trainer) -> None:
        collector, self._collector = self._collector, None
        if collector is None:
            return
        result = collector.of_all_ranks(trainer.strategy)
        if not self._writer or result is None:
            return
        from .classification import Show

        show = Show(self._writer, result, trainer)
        if self.confusion_matrix:
            show.confusion_matrix()
        if self.pr_curves:
            show.precision_recall()
        if self.predictions:
            show.predictions()
        if self.embedding:
            show.embedding()
