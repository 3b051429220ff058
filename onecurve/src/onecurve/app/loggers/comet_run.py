"""Comet; a run that is resumed in its directory continues its experiment there."""

import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CometLogger

KEY = "comet_key"
ARCHIVES = "comet"


class SameRunCometLogger(CometLogger):
    """Lightning's CometLogger, which keeps its experiment's key in the run directory.

    Offline, a run writes an archive into a folder of its directory, and another one each time it is
    resumed: `comet upload runs/NAME/comet/*/*.zip` merges all of them into one
    experiment. A run that is killed writes none. Steps after the checkpoint that a run resumes from
    are logged again. Further arguments are those of CometLogger, and of comet_ml.ExperimentConfig.
    """

    def __init__(
        self, save_dir: str, online: bool = False, experiment_key: str | None = None, **options: Any
    ) -> None:
        # Set before the import: no error reports to Comet, and no announcements.
        os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
        os.environ.setdefault("COMET_DISABLE_ANNOUNCEMENT", "true")
        os.environ.setdefault("COMET_LOGGING_CONSOLE", "ERROR")
        self._key_file = Path(save_dir, KEY)
        if experiment_key is None and self._key_file.exists():
            experiment_key = self._key_file.read_text().strip()
        self._archives = Path(save_dir, ARCHIVES)
        self._is_made = False
        super().__init__(
            online=online,
            experiment_key=experiment_key,
            # Archives may be uploaded in any order.
            mode="get_or_create",
            **options,
        )
        self._is_made = True

    def _create_experiment(self) -> None:
        """Create it when something is logged; also offline, where Lightning disables it."""
        if not self._is_made:
            return
        import comet_ml

        # Comet draws the archive's name from Python's generator, whose seed is always the same.
        folder = self._archives / str(len(list(self._archives.glob("*"))) + 1)
        if self._online is False:
            folder.mkdir(parents=True)
        self._kwargs["offline_directory"] = str(folder)
        self._comet_config = comet_ml.ExperimentConfig(**self._kwargs)
        super()._create_experiment()
        self._key_file.write_text(f"{self._experiment_key}\n")

    def end(self) -> None:
        """Upload the remaining data, or write it to the archive."""
        if self._experiment is not None:
            self._experiment.end()
            self._experiment = None
