"""Accumulates more gradients per step in later epochs."""

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler


class AccumulationSchedule(GradientAccumulationScheduler):
    """Lightning's GradientAccumulationScheduler, also for a run that resumes within an epoch."""

    def __init__(self, from_epochs: Sequence[int], batches: Sequence[int]) -> None:
        super().__init__(dict(zip(from_epochs, batches, strict=True)))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning does not call `on_train_epoch_start` for an epoch that is resumed."""
        super().on_train_start(trainer, pl_module)
        self.on_train_epoch_start(trainer)
