"""Lightning's CSV and TensorBoard loggers, without a write to disk at every step.

The Trainer asks every logger to save after every step. Opening, writing and closing a file each
time costs as much as the step of a small network.

A checkpoint holds the `position` of each, taken when all that was logged is on the disk; a run that
resumes in the same directory tells it with `go_on_from`, and what was logged after it is dropped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from ..errors import say
from .metrics_file import MetricsFile, Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class BufferedCSVLogger(CSVLogger):
    """Writes metrics.csv when ``flush_logs_every_n_steps`` rows are waiting, and at the end.

    On a full disk the rows wait, and a checkpoint takes them along.

    Args:
        save_dir: Where its folder is made.
        name: Of the experiment; empty for no folder of its own.
        version: Likewise.
        flush_logs_every_n_steps: Rows that wait before they are written.
        options: The others of CSVLogger.
    """

    _keep: int | None = None
    _waiting: Sequence[Row] = ()
    _is_full: bool = False
    _experiment: MetricsFile | None

    def __init__(
        self,
        save_dir: str,
        name: str | None = "",
        version: int | str | None = "",
        flush_logs_every_n_steps: int = 100,
        **options: Any,
    ) -> None:
        super().__init__(
            save_dir,
            name,
            version,
            flush_logs_every_n_steps=flush_logs_every_n_steps,
            **options,
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> MetricsFile:
        """The file, opened when first asked for."""
        if self._experiment is None:
            self._experiment = MetricsFile(self.log_dir, self._keep, self._waiting)
        return self._experiment

    def position(self) -> dict[str, Any]:
        """How many rows there are, and which could not be written."""
        self._write()
        return {"rows": self.experiment.written, "waiting": self.experiment.metrics}

    def go_on_from(self, position: dict[str, Any] | None) -> None:
        """Keep the rows that were there at a position."""
        self._keep = position["rows"] if position else 0
        self._waiting = position["waiting"] if position else ()
        self._experiment = None

    @rank_zero_only
    def save(self) -> None:
        if len(self.experiment.metrics) >= self._flush_logs_every_n_steps:
            self._write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left. Lightning calls this at the end, also after a failure."""
        if self._experiment is not None:
            self._write()

    def _write(self) -> None:
        try:
            self.experiment.save()
            self._is_full = False
        except OSError as error:
            if not self._is_full:
                say(f"logger: metrics.csv could not be written: {error.strerror}; its rows wait")
            self._is_full = True


class BufferedTensorBoardLogger(TensorBoardLogger):
    """Keeps scalars and writes them every ``seconds_between_writes``, and at the end.

    TensorBoard's writer is a thread. Woken for every scalar it takes turns with the training loop
    for Python's lock, which costs several times what writing does.
    """

    def __init__(
        self,
        save_dir: str,
        seconds_between_writes: float,
        **options: object,
    ) -> None:
        super().__init__(save_dir, **options)  # type: ignore[arg-type]
        self._seconds_between_writes = seconds_between_writes
        self._last_write = time.monotonic()
        self._waiting: list[tuple[str, float, int | None, float]] = []
        self._last_step: int | None = None
        self._at_last_step: dict[str, float] = {}

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep each value with its step and the time of day, as its chart will show it."""
        now = time.time()
        values = {name: float(value) for name, value in metrics.items()}
        self._waiting += [(name, value, step, now) for name, value in values.items()]
        if step != self._last_step:
            self._last_step, self._at_last_step = step, {}
        self._at_last_step |= values

    def position(self) -> dict[str, Any]:
        """The last step and its values: TensorBoard forgets by whole steps."""
        self._write()
        return {"step": self._last_step, "values": self._at_last_step}

    def go_on_from(self, position: dict[str, Any] | None) -> None:
        """Have TensorBoard forget what was logged after a position."""
        step = position["step"] if position else None
        self._kwargs["purge_step"] = step or 0
        if position and step is not None:
            self.log_metrics(position["values"], step)
        self._wait_for_a_later_name()

    def _wait_for_a_later_name(self) -> None:
        """TensorBoard reads files by their names, which begin with the second of their making."""
        made = [
            path.name.split(".")[3] for path in Path(self.log_dir).glob("events.out.tfevents.*")
        ]
        newest = max((int(second) for second in made if second.isdigit()), default=0)
        wait = newest + 1 - time.time()
        # A clock of another machine may be far ahead.
        if 0 < wait <= 2:
            time.sleep(wait)

    @property
    def goes_on(self) -> bool:
        """Whether an earlier process has begun this run."""
        return "purge_step" in self._kwargs

    @rank_zero_only
    def show(self, draw: "Callable[[SummaryWriter], object]") -> None:
        """Let a function draw with TensorBoard's writer."""
        try:
            draw(self.experiment)
        except OSError:
            self._begin_another_file()

    @rank_zero_only
    def save(self) -> None:
        if time.monotonic() - self._last_write >= self._seconds_between_writes:
            self._write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left. Lightning calls this at the end, also after a failure."""
        self._write()
        super().finalize(status)

    def _write(self) -> None:
        self._last_write = time.monotonic()
        try:
            for name, value, step, at in self._waiting:
                self.experiment.add_scalar(name, value, step, walltime=at)
            super().save()
            self._waiting.clear()
        except OSError:
            self._begin_another_file()

    def _begin_another_file(self) -> None:
        # On a full disk the writer's thread has ended.
        self._experiment = None
        self._kwargs.pop("purge_step", None)
