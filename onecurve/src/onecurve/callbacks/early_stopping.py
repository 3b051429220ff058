"""Stops when a metric no longer improves, judged by the newest validation."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping as LightningsOwn
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from ..arguments import configured_by
from .options import EarlyStoppingOptions


class EarlyStopping(LightningsOwn):
    """Lightning's, which also stops a resumed run as it would have stopped the whole one.

    Lightning keeps a request to stop that `trainer.min_epochs` delays, but not in a checkpoint; and
    the patience of the checkpoint would replace the one that was asked for. Here the request lasts
    until the next validation, which decides anew by the state that is saved.
    """

    @configured_by(EarlyStoppingOptions, "callbacks.early_stopping")
    def __init__(self, options: EarlyStoppingOptions) -> None:
        super().__init__(**options.given())

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Repeat a request that was made before the checkpoint was written."""
        trainer.should_stop = trainer.should_stop or self._asks()

    def _asks(self) -> bool:
        if self.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED:
            return self.wait_count >= self.patience
        return self.stopping_reason != EarlyStoppingReason.NOT_STOPPED

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Withdraw this callback's request; those of others stay."""
        if self._asks() and not trainer.sanity_checking:
            trainer.should_stop = False
            self.stopping_reason = EarlyStoppingReason.NOT_STOPPED

    on_validation_start = on_train_epoch_start

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})
