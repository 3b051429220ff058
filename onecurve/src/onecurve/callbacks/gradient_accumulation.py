"""Accumulates more gradients per step in later epochs."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from ..arguments import configured_by
from .options import AccumulationScheduleOptions


class AccumulationSchedule(GradientAccumulationScheduler):
    """Lightning's GradientAccumulationScheduler, also for a run that resumes within an epoch."""

    @configured_by(AccumulationScheduleOptions, "callbacks.gradient_accumulation")
    def __init__(self, options: AccumulationScheduleOptions) -> None:
        super().__init__(dict(zip(options.from_epochs, options.batches, strict=True)))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning does not call `on_train_epoch_start` for an epoch that is resumed."""
        super().on_train_start(trainer, pl_module)
        self.on_train_epoch_start(trainer)
