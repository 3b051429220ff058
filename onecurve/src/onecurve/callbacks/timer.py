"""Stops a run after a time of training, as SIGUSR1 does: with a checkpoint to resume from."""

import signal
from datetime import timedelta
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer

from ..arguments import configured_by
from ..errors import UserError
from .options import StopAfterOptions


class StopAfter(Timer):
    """Lightning's Timer, which ends the run at once: no validation, no test.

    The time before a run was resumed counts. ``trainer.max_time`` ends a run as its last epoch
    does.

    Raises:
        UserError: At the start, if the time of a resumed run is used up.
    """

    @configured_by(StopAfterOptions, "callbacks.timer")
    def __init__(self, options: StopAfterOptions) -> None:
        super().__init__(options.duration, verbose=False)
        self.duration = options.duration
        self._is_over = False

    def on_fit_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Reject a resumed run without time left; the checkpoint has the time elapsed."""
        if self.time_elapsed() >= (self._duration or 0):
            raise UserError(
                f"callbacks.timer.duration={self.duration}: is used up by {self._spent()} of "
                "training; give more, or leave it out: '~callbacks.timer'"
            )

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Stop by a signal, which one rank passes on to all."""
        is_over = self.time_elapsed() >= (self._duration or 0)
        if is_over and not self._is_over and trainer.is_global_zero:
            print(
                f"timer: {self._spent()} of training are over; to continue: "
                "resume=last callbacks.timer.duration=DD:HH:MM:SS, with more time",
                flush=True,
            )
            # Windows has no SIGUSR1.
            signal.raise_signal(getattr(signal, "SIGUSR1", signal.SIGTERM))
        self._is_over = is_over

    def _spent(self) -> str:
        return str(timedelta(seconds=round(self.time_elapsed())))
