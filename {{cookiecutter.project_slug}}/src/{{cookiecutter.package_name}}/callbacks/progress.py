"""How training goes: a bar in a terminal, plain lines where the output is a file or a pipe."""

import sys
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar

SECONDS_OF_A_STRETCH = 0.5


def progress(refresh_rate: int, seconds_between_lines: float) -> ProgressBar:
    """The display that fits where the output goes.

    Args:
        refresh_rate: In a terminal: redraw the bar every so many steps.
        seconds_between_lines: Elsewhere: a line at the end of each epoch, and within long ones
            whenever so much time has passed.
    """
    if sys.stdout.isatty():
        return ProgressInTerminal(refresh_rate=refresh_rate)
    return ProgressLines(seconds_between_lines)


class SpeedMeter:
    """Samples per second of all ranks, over a stretch of half a second or more."""

    def __init__(self) -> None:
        self._samples = 0
        self._since = time.perf_counter()
        self._speed = 0.0

    def read(self, trainer: Trainer) -> str:
        """The speed of the last stretch that had samples in it. Validation counts as time."""
        seconds = time.perf_counter() - self._since
        samples = getattr(trainer.strategy, "samples_seen", 0) - self._samples
        if samples and (seconds > SECONDS_OF_A_STRETCH or not self._speed):
            self._speed = samples / seconds
            self._samples += samples
            self._since += seconds
        return f"{self._speed:,.0f}"


class ProgressInTerminal(RichProgressBar):
    """Lightning's Rich bar with the speed in samples per second."""

    def __init__(self, refresh_rate: int) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self._meter = SpeedMeter()

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """The task's metrics and the speed, instead of the version number."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        metrics["samples/s"] = self._meter.read(trainer)
        return metrics


class ProgressLines(ProgressBar):
    """One line at the end of each epoch, and at intervals within a long one."""

    def __init__(self, seconds_between_lines: float) -> None:
        super().__init__()
        self._interval = seconds_between_lines
        self._meter = SpeedMeter()
        self._last_line = time.perf_counter()

    def disable(self) -> None:
        """Lightning calls this on every rank but the first."""
        self._interval = float("inf")

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """A line if the last one is long ago."""
        if time.perf_counter() - self._last_line > self._interval:
            self._print(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A line with the epoch's metrics."""
        self._print(trainer)

    def _print(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero:
            return
        self._last_line = time.perf_counter()
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else "?"
        values = trainer.progress_bar_metrics.items()
        parts = [
            f"epoch {trainer.current_epoch + 1}/{epochs}",
            f"step {trainer.global_step}",
            *(f"{name} {value:.4f}" for name, value in values if isinstance(value, float)),
            f"{self._meter.read(trainer)} samples/s",
        ]
        print("  ".join(parts), flush=True)
