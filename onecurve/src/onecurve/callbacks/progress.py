"""The progress of a run: bars in a terminal, plain lines in a file or a pipe."""

import math
import sys
import time
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar

from ..errors import in_digits
from ..optim.schedulers import steps_done, steps_in_all
from ..strategies.strategy import OneCurve

SECONDS_OF_A_WINDOW = 0.5


def progress(refresh_rate: int, seconds_between_lines: float) -> ProgressBar:
    """Bars, drawn again every so many steps, if standard output is a terminal, and else lines."""
    if sys.stdout.isatty():
        return ProgressInTerminal(refresh_rate)
    return ProgressLines(seconds_between_lines)


Facts = dict[str, int | str | float | dict[str, float]]


class Pace:
    """Samples per second of all ranks, over windows of half a second or more, and the time left."""

    _start = -1.0

    def start(self, trainer: Trainer) -> None:
        """Measure from now on."""
        self._samples, self._speed = _samples(trainer), 0.0
        self._since = self._start = time.perf_counter()
        self._first_step = steps_done(trainer)

    def facts(self, trainer: Trainer) -> Facts:
        """What a line or a bar shows, by name. The time of validation is included."""
        if self._start < 0:  # Lightning's bars of the validation before training
            return {}
        now = time.perf_counter()
        seconds, samples = now - self._since, _samples(trainer) - self._samples
        if samples and (seconds > SECONDS_OF_A_WINDOW or not self._speed):
            self._speed = samples / seconds
            self._samples, self._since = self._samples + samples, now
        done, total = steps_done(trainer), steps_in_all(trainer)
        facts: Facts = {"samples/s": f"{self._speed:,.0f}"}
        if (steps := done - self._first_step) and 0 < total < math.inf:
            rest = (now - self._start) / steps * max(total - done, 0)
            facts["left"] = str(timedelta(seconds=round(rest)))
        return facts


class ProgressLines(ProgressBar):
    """One line at the end of each epoch, and at intervals within a long one."""

    def __init__(self, seconds_between_lines: float) -> None:
        super().__init__()
        self._interval = seconds_between_lines
        self._is_enabled = True
        self._pace = Pace()

    def disable(self) -> None:
        """Lightning calls this on every rank but rank 0."""
        self._is_enabled = False

    def enable(self) -> None:
        """Lightning calls this after a callback, such as a finder, has trained."""
        self._is_enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last_line = time.perf_counter()
        self._pace.start(trainer)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if time.perf_counter() - self._last_line > self._interval:
            self._print_line(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print_line(trainer)

    def _print_line(self, trainer: Trainer) -> None:
        self._last_line = time.perf_counter()
        if not self._is_enabled:
            return
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else "?"
        total = steps_in_all(trainer)
        step = f"step {steps_done(trainer)}" + (f"/{total}" if 0 < total < math.inf else "")
        metrics = [
            f"{name} {in_digits(value)}"
            for name, value in trainer.progress_bar_metrics.items()
            if isinstance(value, float)
        ]
        facts = [f"{value} {name}" for name, value in self._pace.facts(trainer).items()]
        line = [f"epoch {trainer.current_epoch + 1}/{epochs}", step, *metrics, *facts]
        print("  ".join(line), flush=True)


class ProgressInTerminal(RichProgressBar):
    """Lightning's bars, with the speed and the time that is left for the run."""

    def __init__(self, refresh_rate: int) -> None:
        super().__init__(refresh_rate, leave=True)
        self._pace = Pace()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._pace.start(trainer)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Facts:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return {**metrics, **self._pace.facts(trainer)}


def _samples(trainer: Trainer) -> int:
    strategy = trainer.strategy
    return strategy.samples_seen if isinstance(strategy, OneCurve) else 0
