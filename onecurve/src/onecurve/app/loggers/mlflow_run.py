"""MLflow; a run that is resumed in its directory continues its run there."""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only

from ...compat.of_lightning import flatten_dict

RUN_ID = "mlflow_run_id"
MOST_AT_ONCE = 1000
"""Values that MLflow takes in one call."""


class SameRunMLFlowLogger(MLFlowLogger):
    """Lightning's MLFlowLogger, which keeps its run's id in the run directory.

    Values are buffered and written every `seconds_between_writes`, and at the end: a database is
    slower than the step of a small network. Steps after the checkpoint that a run resumes from are
    logged again.
    """

    def __init__(
        self,
        save_dir: str,
        tracking_uri: str,
        seconds_between_writes: float = 10.0,
        run_id: str | None = None,
        **options: Any,
    ) -> None:
        # Set before the import: no telemetry, and no log line for each table.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._id_file = Path(save_dir, RUN_ID)
        if run_id is None and self._id_file.exists():
            run_id = self._id_file.read_text().strip()
        self._seconds_between_writes = seconds_between_writes
        self._last_write = time.monotonic()
        self._waiting: list[Any] = []
        super().__init__(run_id=run_id, tracking_uri=tracking_uri, **options)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """MLflow's client; the first access creates the run."""
        is_new = not self._initialized
        client = super().experiment
        if is_new:
            self._id_file.write_text(f"{self._run_id}\n")
            client.update_run(self._run_id, status="RUNNING")
        return client

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any]) -> None:  # type: ignore[override]
        """Log settings that a resumed run changed as tags: MLflow's parameters cannot change."""
        known = self.experiment.get_run(self.run_id).data.params
        flat = {name: str(value) for name, value in flatten_dict(params).items()}
        for name in known.keys() & flat.keys():
            if known[name] != flat[name]:
                self.experiment.set_tag(self.run_id, f"changed/{name}", flat[name])
        super().log_hyperparams({name: flat[name] for name in flat.keys() - known.keys()})

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [
            Metric(f"{self._prefix}{name}", float(value), now, step or 0)
            for name, value in metrics.items()
        ]

    @rank_zero_only
    def save(self) -> None:
        if time.monotonic() - self._last_write >= self._seconds_between_writes:
            self._write()

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        """Write the buffered values and the status of the run."""
        self._write()
        super().finalize(status)

    def _write(self) -> None:
        self._last_write = time.monotonic()
        for first in range(0, len(self._waiting), MOST_AT_ONCE):
            part = self._waiting[first : first + MOST_AT_ONCE]
            self.experiment.log_batch(self.run_id, metrics=part)
        self._waiting.clear()
