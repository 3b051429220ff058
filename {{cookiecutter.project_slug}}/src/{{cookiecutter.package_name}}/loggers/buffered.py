"""Lightning's CSV and TensorBoard loggers, without a write to disk at every step.

The Trainer asks every logger to save after every step. Opening, writing and closing a file each
time costs as much as the step of a small network.
"""

import time

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
    """Writes events every ``seconds_between_writes``, and at the end."""

    def __init__(self, save_dir: str, seconds_between_writes: float, **options: object) -> None:
        super().__init__(save_dir, **options)  # type: ignore[arg-type]
        self._seconds_between_writes = seconds_between_writes
        self._last_write = time.monotonic()

    @rank_zero_only
    def save(self) -> None:
        """Write if the last time is long ago. The end of a run writes by itself."""
        if time.monotonic() - self._last_write >= self._seconds_between_writes:
            self._last_write = time.monotonic()
            super().save()
