"""Writes metrics for Katib's file collector: one JSON object per line."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from ..arguments import configured_by
from ..compat.of_lightning import results_of
from ..errors import say
from .options import KatibMetricsOptions


class KatibMetrics(Checkpoint):
    """Appends the metrics of each epoch, validation and test, under the names of `self.log`.

    For a Katib experiment whose metrics collector is of the kind ``File``, in the format ``JSON``.
    The collector ends at a line that is no JSON object, and ignores values that are no strings. So
    values are strings, and a line is written completely or not at all. A container that was
    restarted continues the file.

    Lightning calls a callback of this base class after the task's own `on_train_epoch_end`.
    """

    @configured_by(KatibMetricsOptions, "callbacks.katib")
    def __init__(self, options: KatibMetricsOptions) -> None:
        self.file = Path(options.file)
        self._waiting = b""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the file, for which the collector waits, and drop a partial line at its end."""
        if trainer.is_global_zero:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a+b") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Append the metrics of the loop that ends."""
        # Not `callback_metrics`, which has those of the last validation, too.
        results = results_of(trainer)
        if results is None or trainer.sanity_checking:
            return
        # On every rank: this may reduce metrics over the ranks.
        metrics = results.metrics(on_step=False)["callback"]
        if metrics and trainer.is_global_zero:
            self._waiting += line(metrics)
            self._write()

    on_train_epoch_end = on_test_end = on_validation_end

    def _write(self) -> None:
        """Write the lines; on a full disk they wait."""
        try:
            with self.file.open("ab", buffering=0) as file:
                size = file.tell()
                if file.write(self._waiting) < len(self._waiting):
                    file.truncate(size)
                    raise OSError(0, "No space left on device")
            self._waiting = b""
        except OSError as error:
            say(f"katib: {self.file} could not be written: {error.strerror}; its lines wait")


def line(metrics: Mapping[str, Tensor | float]) -> bytes:
    """A line of the file: the values as strings, and the time by RFC 3339."""
    values = {name: repr(float(value)) for name, value in metrics.items()}
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({**values, "timestamp": now}).encode() + b"\n"
