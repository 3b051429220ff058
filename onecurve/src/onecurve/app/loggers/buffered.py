"""Lightning's CSV and TensorBoard loggers, buffered, and resumable from a checkpoint.

The Trainer calls `save` of every logger after every step. Opening, writing and closing a file each
time costs as much as the step of a small network.

A checkpoint contains the `position` of each logger, taken when everything logged is on the disk. A
run that resumes in the same directory passes it to `go_on_from`, which drops everything after it.
"""

import csv
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from ...errors import say
from .run_directory import config_of, overrides_of, title_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class MetricsFile(ExperimentWriter):
    """metrics.csv: no row is lost or partial, and a resumed run continues it.

    Lightning's own deletes an existing file, empties it before it adds a column, and leaves a
    partial row on a full disk. The first `keep` rows of an earlier file are kept.
    """

    def __init__(self, log_dir: str, keep: int = 0) -> None:
        super().__init__(log_dir)
        self.path = Path(self.metrics_file_path)
        rows = self._read()[:keep]
        self.written = len(rows)
        if rows:
            self.metrics_keys = list(rows[0])
            self._replace(rows, self.metrics_keys)
        else:
            self.path.unlink(missing_ok=True)

    def save(self) -> None:
        """Write the buffered rows.

        Raises:
            OSError: If the disk is full. The file is unchanged, and the rows stay buffered.
        """
        keys = sorted({*self.metrics_keys}.union(*self.metrics))
        if keys != self.metrics_keys:
            self._replace([*self._read(), *self.metrics], keys)
            self.metrics_keys = keys
        elif self.metrics:
            self._append()
        self.written += len(self.metrics)
        self.metrics = []

    def _check_log_dir_exists(self) -> None:
        """Lightning warns that the folder is not empty; a run directory never is."""

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _append(self) -> None:
        size = self.path.stat().st_size
        try:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.metrics_keys).writerows(self.metrics)
        except OSError:
            os.truncate(self.path, size)
            raise

    def _replace(self, rows: list[dict[str, Any]], keys: list[str]) -> None:
        unfinished = self.path.with_suffix(".csv.new")
        with unfinished.open("w", newline="") as file:
            writer = csv.DictWriter(file, keys)
            writer.writeheader()
            writer.writerows(rows)
        unfinished.replace(self.path)


class BufferedCSVLogger(CSVLogger):
    """Writes metrics.csv when ``flush_logs_every_n_steps`` rows are buffered, and at the end.

    On a full disk the rows stay buffered.
    """

    _keep = 0  # rows of an earlier file
    _is_full = False
    _experiment: MetricsFile | None

    @property
    @rank_zero_experiment
    def experiment(self) -> MetricsFile:
        """The file, opened at the first access."""
        if self._experiment is None:
            self._experiment = MetricsFile(self.log_dir, self._keep)
        return self._experiment

    def position(self) -> dict[str, Any]:
        """The number of rows in the file."""
        self._write()
        return {"rows": self.experiment.written}

    def go_on_from(self, position: dict[str, Any] | None) -> None:
        """Truncate the file to the rows of a position."""
        self._keep = position["rows"] if position else 0
        self._experiment = None

    @rank_zero_only
    def save(self) -> None:
        if len(self.experiment.metrics) >= self._flush_logs_every_n_steps:
            self._write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the buffered values. Lightning calls this at the end, also after a failure."""
        if self._experiment is not None:
            self._write()

    def _write(self) -> None:
        try:
            self.experiment.save()
            self._is_full = False
        except OSError as error:
            if not self._is_full:
                reason = f"could not be written: {error.strerror}"
                say(f"logger: metrics.csv {reason}; its rows stay buffered")
            self._is_full = True


class BufferedTensorBoardLogger(TensorBoardLogger):
    """Buffers scalars and writes them every ``seconds_between_writes``, and at the end.

    TensorBoard names a run by its folder, which is called by the strategy and what was typed. The
    row of the tab "HParams" is written once names of metrics are known, after the first epoch.
    TensorBoard's writer is a thread. Woken for every scalar, it competes with the training loop for
    Python's global lock, which costs several times what writing does.
    """

    def __init__(
        self, save_dir: str, seconds_between_writes: float, hparams: bool = True, **options: Any
    ) -> None:
        super().__init__(save_dir, **options)
        self._wants_hparams = hparams
        self._names: set[str] = set()
        self._title: str | None = None
        self._seconds_between_writes = seconds_between_writes
        self._last_write = time.monotonic()
        self._waiting: list[tuple[str, float, int | None, float]] = []
        self._last_step: int | None = None
        self._at_last_step: dict[str, float] = {}

    @property
    def log_dir(self) -> str:
        """A subfolder with the run's title; that of its earlier events, if it is resumed."""
        folder = Path(super().log_dir)
        if self._title is None:
            earlier = sorted(folder.rglob("events.out.tfevents.*"))
            there = str(earlier[-1].parent.relative_to(folder)) if earlier else None
            self._title = there or title_of(Path(self.save_dir))
        return str(folder / self._title)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Buffer each value with its step and the time, which TensorBoard shows."""
        if metrics.get("epoch", 0) >= 1:
            self._write_hparams()
        self._names.update(name for name in metrics if name != "epoch" and name[:3] != "lr-")
        now = time.time()
        values = {name: float(value) for name, value in metrics.items()}
        self._waiting += [(name, value, step, now) for name, value in values.items()]
        if step != self._last_step:
            self._last_step, self._at_last_step = step, {}
        self._at_last_step |= values

    def position(self) -> dict[str, Any]:
        """The last step and its values: TensorBoard purges by steps."""
        self._write()
        return {"step": self._last_step, "values": self._at_last_step}

    def go_on_from(self, position: dict[str, Any] | None) -> None:
        """Let TensorBoard purge everything logged after a position."""
        step = position["step"] if position else None
        self._kwargs["purge_step"] = step or 0
        if position and step is not None:
            self.log_metrics(position["values"], step)

    @rank_zero_only
    def show(self, draw: "Callable[[SummaryWriter], object]") -> None:
        """Pass TensorBoard's writer to a function; on a full disk the next call begins a file."""
        try:
            draw(self.experiment)
        except OSError:
            # The thread of this writer has died. Another one purges nothing.
            self._experiment = None
            self._kwargs.pop("purge_step", None)

    @rank_zero_only
    def save(self) -> None:
        if time.monotonic() - self._last_write >= self._seconds_between_writes:
            self._write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the buffered values. Lightning calls this at the end, also after a failure."""
        if self._waiting:
            # Opens TensorBoard's writer again, which the end of the fit has closed.
            self._write()
        self._write_hparams()
        super().finalize(status)

    def _write(self) -> None:
        self._last_write = time.monotonic()
        self.show(self._write_scalars)

    def _write_scalars(self, writer: "SummaryWriter") -> None:
        for name, value, step, at in self._waiting:
            writer.add_scalar(name, value, step, walltime=at)
        super().save()
        self._waiting.clear()

    def _write_hparams(self) -> None:
        """Show the overrides; TensorBoard adds the last value of each metric that is named."""
        run_dir = Path(self.save_dir)
        if not self._wants_hparams or not self._names or not (config := config_of(run_dir)):
            return
        from torch.utils.tensorboard.summary import hparams

        names = set(self._names)
        if config.get("test"):  # once, and the test comes later
            names |= {f"test{name[3:]}" for name in names if name.startswith("val")}
        metrics = dict.fromkeys(sorted(names), 0.0)
        summaries = hparams(overrides_of(run_dir, config), metrics)  # type: ignore[no-untyped-call]
        self.show(lambda writer: [*map(cast(Any, writer).file_writer.add_summary, summaries)])
        self._wants_hparams = False
