"""What a run puts into its checkpoints so that another can go on with it, and takes out of one."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn

from ..compat.of_lightning import (
    accumulates,
    initial_hyperparameters,
    logged_steps,
    metrics_to_log,
    set_initial_hyperparameters,
)
from ..loggers.resumable import ResumableLogger
from .changed_settings import apply_changes
from .contents import FORMAT, task_arguments
from .kept_best import keep_best

# Where Lightning stores what `save_hyperparameters` keeps.
PARAMETERS = (
    LightningModule.CHECKPOINT_HYPER_PARAMS_KEY,
    LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY,
)


class CarryOn(Callback):
    """Adds to every checkpoint what another run needs to go on with it.

    Args:
        config: The resolved configuration.
        logs: ``logs`` of the checkpoint that this run goes on with in the same directory.
        layout: ``layout`` of the checkpoint that this run goes on with.
        hide: What classes keep of their arguments, without what is not stored.
    """

    def __init__(
        self,
        config: dict[str, Any],
        logs: dict[str, Any] | None = None,
        layout: dict[str, Any] | None = None,
        hide: Callable[[Any], Any] = lambda parameters: parameters,
    ) -> None:
        self.config = config
        self.logs = logs
        self.layout = layout
        self.hide = hide

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before loggers are told of hyperparameters."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for each in (pl_module, data):
            if (saved := initial_hyperparameters(each)) is not None:
                set_initial_hyperparameters(each, self.hide(saved))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lightning is about to load states, in which changed settings have their old values."""
        said = keep_best(checkpoint, trainer)
        if trainer.state.fn == TrainerFn.FITTING and trainer.train_dataloader is None:
            if changes := apply_changes(checkpoint, self.config):
                said.append(f"from here on {'; '.join(changes)}")
            for line in said if trainer.is_global_zero else ():
                print(f"resume: {line}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how the layout changed, and log what the checkpoint was written too early for."""
        here = self._layout(trainer)
        if self.layout and self.layout != here and trainer.is_global_zero:
            before, now = (
                f"{layout['strategy']} on {layout['world_size']}" for layout in (self.layout, here)
            )
            print(
                f"resume: saved under {before}, goes on under {now}: the samples stay in order; "
                "what a step draws at random is derived anew from seed, step and rank"
            )
        if self.logs and self.logs["unlogged"]:
            for logger in trainer.loggers:
                logger.log_metrics(self.logs["unlogged"], step=self.logs["step"])
        self.logs = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lightning is about to write the file; everything logged so far goes to the disk first."""
        checkpoint["format"] = FORMAT
        checkpoint["config"] = self.config
        checkpoint["layout"] = self._layout(trainer)
        if getattr(trainer, "begun", None):
            checkpoint["had_other_steps"] = True
        for key in PARAMETERS:
            if key in checkpoint:
                checkpoint[key] = self.hide(checkpoint[key])
        checkpoint.setdefault(pl_module.CHECKPOINT_HYPER_PARAMS_KEY, task_arguments(self.config))
        loop = trainer.fit_loop.epoch_loop
        # At the end of a step, and of an epoch, its metrics are logged only after the callbacks.
        batch: Any = loop.batch_progress.current
        in_step = batch.processed > batch.completed and not accumulates(trainer)
        epoch: Any = trainer.fit_loop.epoch_progress.current
        unlogged: dict[str, float] = {}
        if in_step or epoch.processed > epoch.completed:
            metrics = metrics_to_log(trainer)
            unlogged = {name: float(value) for name, value in metrics.items()}
        if unlogged:
            unlogged["epoch"] = trainer.current_epoch
        positions = {
            type(logger).__name__: logger.position()
            for logger in trainer.loggers
            if trainer.is_global_zero and isinstance(logger, ResumableLogger)
        }
        checkpoint["logs"] = {
            # Lightning logs the end of an epoch at its last step.
            "step": logged_steps(trainer) - (not in_step),
            "unlogged": unlogged,
            "positions": positions,
        }

    def _layout(self, trainer: Trainer) -> dict[str, Any]:
        return {"strategy": self.config["strategy"]["name"], "world_size": trainer.world_size}


def go_on_logging(loggers: list[Logger], logs: dict[str, Any]) -> None:
    """Tell loggers where a checkpoint was written; they drop what came after it."""
    for logger in loggers:
        if isinstance(logger, ResumableLogger):
            logger.go_on_from(logs["positions"].get(type(logger).__name__))
