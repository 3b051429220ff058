"""metrics.csv, written so that no row is lost or partial, and continued by a resumed run."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.csv_logs import ExperimentWriter

Row = dict[str, Any]


class MetricsFile(ExperimentWriter):
    """The writer of `CSVLogger`.

    Lightning's writer deletes an existing file, empties it before it adds a column, and leaves a
    partial row on a full disk.

    Args:
        log_dir: The run directory.
        keep: Number of rows of an earlier file to keep; None starts a new file.
        waiting: Rows to write after these.
    """

    def __init__(self, log_dir: str, keep: int | None = None, waiting: Sequence[Row] = ()) -> None:
        super().__init__(log_dir)
        self.path = Path(self.metrics_file_path)
        self.written = 0
        self.metrics = [dict(row) for row in waiting]
        if keep is not None and self.path.is_file():
            rows, self.metrics_keys = self._read()
            self._replace(rows[:keep])
            self.written = len(rows[:keep])
        else:
            self.path.unlink(missing_ok=True)

    def save(self) -> None:
        """Write the buffered rows.

        Raises:
            OSError: If the disk is full. The file is unchanged, and the rows stay buffered.
        """
        if not self.metrics:
            return
        known = self.metrics_keys
        keys = sorted({*known, *(key for row in self.metrics for key in row)})
        if keys == known and self.path.is_file():
            self._append()
        else:
            self.metrics_keys = keys
            try:
                self._replace([*(self._read()[0] if self.path.is_file() else []), *self.metrics])
            except OSError:
                self.metrics_keys = known
                raise
        self.written += len(self.metrics)
        self.metrics = []

    def _check_log_dir_exists(self) -> None:
        """Lightning warns that the folder is not empty; a run directory never is."""

    def _read(self) -> tuple[list[Row], list[str]]:
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            return list(reader), list(reader.fieldnames or ())

    def _append(self) -> None:
        size = self.path.stat().st_size
        try:
            with self.path.open("a", newline="") as file:
                file.write(self._text(self.metrics))
        except OSError:
            os.truncate(self.path, size)
            raise

    def _replace(self, rows: list[Row]) -> None:
        """Replace the file by one with the current columns."""
        unfinished = self.path.with_suffix(".csv.new")
        try:
            unfinished.write_text(self._text(rows, header=True), newline="")
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        unfinished.replace(self.path)

    def _text(self, rows: list[Row], header: bool = False) -> str:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=self.metrics_keys)
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
