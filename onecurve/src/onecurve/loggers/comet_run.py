"""Comet, where a run that goes on in its directory is the same experiment there."""

import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CometLogger

KEY = "comet_key"
ARCHIVES = "comet"


class SameRunCometLogger(CometLogger):
    """Lightning's CometLogger, which keeps its experiment's key in the run directory.

    Offline, a run leaves an archive in a folder of its directory, and another where it goes on:
    `comet upload runs/NAME/comet/*/*.zip` makes one experiment of all. Where it is killed it leaves
    none. Steps that were logged after the checkpoint that a run goes on from are logged again.

    Args:
        save_dir: The run directory.
        online: Whether Comet's server is told at once, which takes a key of one's own.
        experiment_key: Of the experiment; None goes on with the one in `save_dir`, or makes a new
            one.
        options: The others of CometLogger, and of comet_ml.ExperimentConfig.
    """

    def __init__(
        self, save_dir: str, online: bool = False, experiment_key: str | None = None, **options: Any
    ) -> None:
        # Before it is imported: else it tells its makers of errors, and you of itself.
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
            # Archives may be sent in any order.
            mode="get_or_create",
            **options,
        )
        self._is_made = True

    def _create_experiment(self) -> None:
        """Nothing before there is something to log; then also offline, which Lightning disables."""
        if not self._is_made:
            return
        import comet_ml

        # Comet draws the archive's name as this run draws its numbers: the same every time.
        folder = self._archives / str(len(list(self._archives.glob("*"))) + 1)
        if self._online is False:
            folder.mkdir(parents=True)
        self._kwargs["offline_directory"] = str(folder)
        self._comet_config = comet_ml.ExperimentConfig(**self._kwargs)
        super()._create_experiment()
        self._key_file.write_text(f"{self._experiment_key}\n")

    def end(self) -> None:
        """Send what is left, or put it into the archive."""
        if self._experiment is not None:
            self._experiment.end()
            self._experiment = None
