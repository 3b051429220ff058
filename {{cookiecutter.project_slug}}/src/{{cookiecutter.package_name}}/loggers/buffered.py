"""Lightning's CSV and TensorBoard loggers, without a write to disk at every step.

The Trainer asks every logger to save after every step. Opening, writing and closing a file each
time costs as much as the step of a small network.
"""

import time
from collections.abc import Mapping

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only


class BufferedCSVLogger(CSVLogger):
    """Writes metrics.csv when ``flush_logs_every_n_steps`` rows are waiting, and at the end."""

    @rank_zero_only
    def save(self) -> None:
        """Write if enough rows are waiting."""
        if len(self.experiment.metrics) >= self._flush_logs_every_n_steps:
            super().save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left. Lightning calls this at the end, also after a failure."""
        if self._experiment is not None:
            super().save()


class BufferedTensorBoardLogger(TensorBoardLogger):
    """Keeps scalars and writes them every ``seconds_between_writes``, and at the end.

    TensorBoard's writer is a thread. Woken for every scalar it takes turns with the training loop
    for Python's lock, which costs several times what writing does.
    """

    def __init__(self, save_dir: str, seconds_between_writes: float, **options: object) -> None:
        super().__init__(save_dir, **options)  # type: ignore[arg-type]
        self._seconds_between_writes = seconds_between_writes
        self._last_write = time.monotonic()
        self._waiting: list[tuple[str, float, int | None, float]] = []

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep each value with its step and the time of day, as its chart will show it."""
        now = time.time()
        self._waiting += [(name, float(value), step, now) for name, value in metrics.items()]

    @rank_zero_only
    def save(self) -> None:
        """Write if the last time is long ago."""
        if time.monotonic() - self._last_write >= self._seconds_between_writes:
            self._write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left. Lightning calls this at the end, also after a failure."""
        self._write()
        super().finalize(status)

    def _write(self) -> None:
        self._last_write = time.monotonic()
        for name, value, step, at in self._waiting:
            self.experiment.add_scalar(name, value, step, walltime=at)
        self._waiting.clear()
        super().save()
