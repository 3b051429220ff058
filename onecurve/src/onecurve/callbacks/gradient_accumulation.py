"""More gradients to a step as training goes on: a larger batch in the end."""

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler


class AccumulationSchedule(GradientAccumulationScheduler):
    """Lightning's GradientAccumulationScheduler, also where a run goes on within an epoch.

    Args:
        from_epochs: The epochs from which another number counts; the first is 0.
        batches: How many make a step from then on.
    """

    def __init__(
        self,
        from_epochs: Sequence[int],
        batches: Sequence[int],
    ) -> None:
        super().__init__(dict(zip(from_epochs, batches, strict=True)))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch that a run goes on in is not started again."""
        super().on_train_start(trainer, pl_module)
        self.on_train_epoch_start(trainer)
