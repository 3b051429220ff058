"""Exponential moving average of the weights, which is validated and saved as the best."""

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ..arguments import configured_by
from ..compat.of_lightning import callbacks_of
from .average import Averaging
from .options import ExponentialMovingAverageOptions


class ExponentialMovingAverage(Averaging):
    """Averages the weights after every optimizer step, and validates the average.

    Checkpoints hold the average, which was validated, as the network's weights, and beside it the
    weights of training. Buffers, such as BatchNorm statistics, are not averaged. Training itself
    does not use the average.

    After n steps at most (1 + n) / (10 + n) of the average remain, as in TensorFlow's
    ExponentialMovingAverage. The argument is described in `ExponentialMovingAverageOptions`.
    """

    # A fit without such a callback resumes from the live weights: see `CallbackAPI`.
    keeps_live_weights = True

    @configured_by(ExponentialMovingAverageOptions, "callbacks.ema")
    def __init__(self, options: ExponentialMovingAverageOptions) -> None:
        super().__init__()
        self.decay = options.decay
        self._live: dict[str, Any] | None = None
        self._validating = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the weights of training, and the average, of a resumed run."""
        if self._live:
            trainer.strategy.load_model_state_dict({"state_dict": self._live})
            self._live = None
        super().on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.has_stepped(trainer):
            count = self.average.count
            self.average.add(pl_module, 1 - min(self.decay, (1 + count) / (10 + count)))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validate the average."""
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self.average.count and fits:
            self._validating.enter_context(self.average.in_place(pl_module))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validating.close()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the average as the weights, unless another average is being saved."""
        is_another_saved = any(each.is_saving for each in callbacks_of(trainer, Averaging))
        if self.average.count and not is_another_saved:
            checkpoint.setdefault("averages", {})["live"] = checkpoint["state_dict"]
            checkpoint["state_dict"] = self.average.gathered(trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the average and the weights of training until the module is sharded or split."""
        averages = checkpoint.get("averages", {})
        if "live" in averages:
            self._live, self._restored = averages["live"], checkpoint["state_dict"]
