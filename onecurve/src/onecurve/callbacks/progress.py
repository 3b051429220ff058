"""The progress of a run: bars in a terminal, plain lines in a file or a pipe."""

import math
import sys
import time
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ..errors import plain_console
from ..optim.steps import steps_done, steps_in_all
from ..strategies.strategy import OneCurve

SECONDS_OF_A_WINDOW = 0.5


def progress(refresh_rate: int, seconds_between_lines: float) -> ProgressBar:
    """Bars, drawn again every so many steps, if standard output is a terminal, and else lines."""
    if sys.stdout.isatty():
        return ProgressInTerminal(refresh_rate)
    return ProgressLines(seconds_between_lines)


class SpeedMeter:
    """Samples per second of all ranks, over windows of half a second or more."""

    def __init__(self) -> None:
        self._samples = 0
        self._since = time.perf_counter()
        self._speed = 0.0

    def read(self, trainer: Trainer) -> str:
        """The speed of the last window with samples. The time of validation is included."""
        seconds = time.perf_counter() - self._since
        strategy = trainer.strategy
        samples = strategy.samples_seen if isinstance(strategy, OneCurve) else 0
        samples -= self._samples
        if samples and (seconds > SECONDS_OF_A_WINDOW or not self._speed):
            self._speed = samples / seconds
            self._samples += samples
            self._since += seconds
        return f"{self._speed:,.0f}"


class ProgressLines(ProgressBar):
    """One line at the end of each epoch, and at intervals within a long one."""

    def __init__(self, seconds_between_lines: float) -> None:
        super().__init__()
        self._interval = seconds_between_lines
        self._is_enabled = True
        self._meter = SpeedMeter()

    def disable(self) -> None:
        """Lightning calls this on every rank but rank 0."""
        self._is_enabled = False

    def enable(self) -> None:
        """Lightning calls this after a callback, such as a finder, has trained."""
        self._is_enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last_line = self._start = time.perf_counter()
        self._first_step = steps_done(trainer)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if time.perf_counter() - self._last_line > self._interval:
            self._print_line(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print_line(trainer)

    def _print_line(self, trainer: Trainer) -> None:
        self._last_line = time.perf_counter()
        if self._is_enabled:
            parts = [_epoch(trainer), _step(trainer), *_metrics(trainer), self._speed(trainer)]
            print("  ".join([*parts, *self._time_left(trainer)]), flush=True)

    def _speed(self, trainer: Trainer) -> str:
        return f"{self._meter.read(trainer)} samples/s"

    def _time_left(self, trainer: Trainer) -> list[str]:
        """For the rest of the run, at the pace so far, validation included."""
        done, total = steps_done(trainer), steps_in_all(trainer)
        steps = done - self._first_step
        if not steps or not 0 < total < math.inf:
            return []
        a_step = (time.perf_counter() - self._start) / steps
        seconds = a_step * max(total - done, 0)
        return [f"{timedelta(seconds=round(seconds))} left"]


class ProgressInTerminal(ProgressLines):
    """A line per epoch, a bar for the run, and one for the validation, test or prediction."""

    def __init__(self, refresh_rate: int) -> None:
        super().__init__(seconds_between_lines=math.inf)
        self._refresh_rate = refresh_rate
        self._bars: Progress | None = None
        self._run: TaskID | None = None
        self._loop: TaskID | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._run = self._add(_epoch(trainer), steps_in_all(trainer))
        self._update_run(trainer)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.fit_loop.total_batch_idx % self._refresh_rate == 0:
            self._update_run(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self._update_run(trainer)
        if self._bars:
            self._bars.refresh()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start_loop("validation", trainer.num_val_batches)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start_loop("test", trainer.num_test_batches)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start_loop("prediction", trainer.num_predict_batches)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if self._bars and self._loop is not None:
            self._bars.advance(self._loop)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._bars and self._loop is not None:
            self._bars.remove_task(self._loop)
            self._loop = None
        # The bar of the run stays while it goes on.
        if trainer.state.fn != TrainerFn.FITTING or self._run is None:
            self._stop()

    on_test_end = on_predict_end = on_validation_end

    def on_exception(self, *_: Any, **__: Any) -> None:
        self._stop()

    def _add(self, name: str, total: float) -> TaskID | None:
        if not self._is_enabled:
            return None
        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(20),
                TextColumn("{task.fields[facts]}", markup=False),
                console=plain_console(),
            )
            self._bars.start()
        return self._bars.add_task(name, total=total if total < math.inf else None, facts="")

    def _update_run(self, trainer: Trainer) -> None:
        if self._bars is None or self._run is None:
            return
        total = steps_in_all(trainer)
        facts = [_step(trainer), self._speed(trainer), *self._time_left(trainer)]
        self._bars.update(
            self._run,
            completed=steps_done(trainer),
            total=total if total < math.inf else None,
            description=_epoch(trainer),
            facts="  ".join(facts),
        )

    def _start_loop(self, name: str, batches: list[int | float]) -> None:
        self._loop = self._add(name, sum(batches))

    def _stop(self) -> None:
        if self._bars:
            for task in self._bars.task_ids:
                self._bars.remove_task(task)
            self._bars.stop()
        self._bars = self._run = self._loop = None

    def _print_line(self, trainer: Trainer) -> None:
        # Step and speed are beside the bar, so that this fits into 80 columns.
        if self._bars:
            line = "  ".join([_epoch(trainer), *_metrics(trainer)])
            self._bars.console.print(line, highlight=False, soft_wrap=True)


def _epoch(trainer: Trainer) -> str:
    epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else "?"
    return f"epoch {trainer.current_epoch + 1}/{epochs}"


def _step(trainer: Trainer) -> str:
    total = steps_in_all(trainer)
    return f"step {steps_done(trainer)}" + (f"/{total}" if 0 < total < math.inf else "")


def _metrics(trainer: Trainer) -> list[str]:
    values = trainer.progress_bar_metrics.items()
    return [f"{name} {value:.4f}" for name, value in values if isinstance(value, float)]
