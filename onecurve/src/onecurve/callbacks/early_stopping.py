"""Stops when a metric no longer improves, by what the newest validation shows."""

from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping as LightningsOwn
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason


class EarlyStopping(LightningsOwn):
    """Lightning's, which takes a request to stop back if it was not acted on.

    With `trainer.min_epochs` training goes on after patience has run out. Lightning's own would
    stop once there are as many epochs, whatever the metric has done since, and a run that is
    resumed would not.

    Args:
        monitor: The metric.
        mode: Whether less or more of it is better.
        patience: Validations without improvement after which training ends.
        min_delta: What counts as an improvement.
        strict: Whether a metric that is not there is an error.
        check_finite: End at a value that is not finite.
        stopping_threshold: End at a value that is better.
        divergence_threshold: End at a value that is worse.
        check_on_train_epoch_end: Look at the end of an epoch instead of a validation.
        verbose: Log what is seen.
        log_rank_zero_only: On the first rank alone.
    """

    def __init__(
        self,
        monitor: str,
        mode: Literal["min", "max"] = "min",
        patience: int = 3,
        min_delta: float = 0.0,
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        verbose: bool = False,
        log_rank_zero_only: bool = False,
    ) -> None:
        super().__init__(
            monitor,
            mode=mode,
            patience=patience,
            min_delta=min_delta,
            strict=strict,
            check_finite=check_finite,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            check_on_train_epoch_end=check_on_train_epoch_end,
            verbose=verbose,
            log_rank_zero_only=log_rank_zero_only,
        )
        self._asks = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A checkpoint may have been written after the request."""
        is_patience = self.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED
        self._asks = self._asks and not (is_patience and self.wait_count < self.patience)
        trainer.should_stop = trainer.should_stop or self._asks

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._take_back(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._take_back(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_asked_already = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        self._asks = self._asks or (trainer.should_stop and not is_asked_already)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_asked_already = trainer.should_stop
        super().on_train_epoch_end(trainer, pl_module)
        self._asks = self._asks or (trainer.should_stop and not is_asked_already)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "asks": self._asks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._asks = state_dict.get("asks", False)

    def _take_back(self, trainer: Trainer) -> None:
        """What others have asked for stays."""
        if self._asks:
            trainer.should_stop = self._asks = False
