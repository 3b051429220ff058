"""metrics.csv: a table that is never lost or torn, and that a resumed run goes on with."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.csv_logs import ExperimentWriter

Row = dict[str, Any]


class MetricsFile(ExperimentWriter):
    """What `CSVLogger` writes with.

    Lightning's own deletes a file that is there, and empties it before it adds a column.

    Args:
        log_dir: The run directory.
        keep: How many rows of an earlier file to go on after; None starts a new file.
    """

    def __init__(self, log_dir: str, keep: int | None = None) -> None:
        super().__init__(log_dir)
        self.written = 0
        file = Path(self.metrics_file_path)
        if keep is not None and file.is_file():
            with file.open(newline="") as table:
                reader = csv.DictReader(table)
                rows = [row for _, row in zip(range(keep), reader, strict=False)]
                self.metrics_keys = list(reader.fieldnames or ())
            self._write_all(rows)
            self.written = len(rows)
        else:
            file.unlink(missing_ok=True)

    def save(self) -> None:
        """Write the rows that are waiting."""
        waiting = len(self.metrics)
        super().save()
        self.written += waiting

    def _check_log_dir_exists(self) -> None:
        """The run directory is never empty."""

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        with Path(self.metrics_file_path).open(newline="") as file:
            self._write_all(list(csv.DictReader(file)))

    def _write_all(self, rows: list[Row]) -> None:
        """Replace the file by one with the columns of today."""
        path = Path(self.metrics_file_path)
        unfinished = path.with_suffix(".csv.new")
        with unfinished.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=self.metrics_keys)
            writer.writeheader()
            writer.writerows(rows)
        unfinished.replace(path)
