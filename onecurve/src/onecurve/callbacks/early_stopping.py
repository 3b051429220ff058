"""Stops when a metric no longer improves, judged by the newest validation."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping as LightningsOwn
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from ..arguments import configured_by
from .options import EarlyStoppingOptions


class EarlyStopping(LightningsOwn):
    """Lightning's, which withdraws a request to stop that `trainer.min_epochs` has delayed.

    Lightning's own would stop after `min_epochs`, even if the metric has improved since patience
    ran out; and a run that is resumed meanwhile would not stop.
    """

    @configured_by(EarlyStoppingOptions, "callbacks.early_stopping")
    def __init__(self, options: EarlyStoppingOptions) -> None:
        super().__init__(**options.given())
        self._requests_stop = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore a request that was made before the checkpoint was written."""
        is_patience = self.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED
        self._requests_stop = self._requests_stop and not (
            is_patience and self.wait_count < self.patience
        )
        trainer.should_stop = trainer.should_stop or self._requests_stop

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Withdraw this callback's request; those of others stay."""
        if self._requests_stop:
            trainer.should_stop = self._requests_stop = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new validation decides anew; that before training does not."""
        if not trainer.sanity_checking:
            self.on_train_epoch_start(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        was_requested = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        self._requests_stop = self._requests_stop or (trainer.should_stop and not was_requested)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        was_requested = trainer.should_stop
        super().on_train_epoch_end(trainer, pl_module)
        self._requests_stop = self._requests_stop or (trainer.should_stop and not was_requested)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "asks": self._requests_stop}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning's state has the patience of the run before.
        super().load_state_dict({**state_dict, "patience": self.patience})
        self._requests_stop = state_dict.get("asks", False)
