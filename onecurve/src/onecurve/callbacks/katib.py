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
from .options import KatibMetricsOptions


class KatibMetrics(Checkpoint):
    """Appends the metrics of each epoch, validation and test, under the names of `self.log`.

    For a metrics collector of the kind ``File``, in the format ``JSON``, which ignores values that
    are no strings. Its base class lets the task's own `on_train_epoch_end` come first.
    """

    @configured_by(KatibMetricsOptions, "callbacks.katib")
    def __init__(self, options: KatibMetricsOptions) -> None:
        self.file = Path(options.file)

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
            with self.file.open("ab") as file:
                file.write(line(metrics))

    on_train_epoch_end = on_test_end = on_validation_end


def line(metrics: Mapping[str, Tensor | float]) -> bytes:
    """A line of the file: the values as strings, and the time by RFC 3339."""
    values = {name: repr(float(value)) for name, value in metrics.items()}
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({**values, "timestamp": now}).encode() + b"\n"
