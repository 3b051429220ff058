"""Lightning's loggers for MLflow and Comet, quiet, and without reports to their makers."""

import logging
import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CometLogger, MLFlowLogger


def mlflow(save_dir: str, **options: Any) -> MLFlowLogger:
    """Lightning's MLFlowLogger; a run that is resumed is another run there."""
    # Set before the import: no telemetry, and no log line for each table.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MLFlowLogger(save_dir=save_dir, **options)


def comet(save_dir: str, online: bool = False, **options: Any) -> CometLogger:
    """Lightning's CometLogger; offline it writes an archive into a folder of the run directory.

    A run that is killed writes none, and one that is resumed is another experiment. Further
    arguments are those of CometLogger, and of comet_ml.ExperimentConfig.
    """
    # Set before the import: no error reports to Comet, and no announcements.
    os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")
    os.environ.setdefault("COMET_DISABLE_ANNOUNCEMENT", "true")
    os.environ.setdefault("COMET_LOGGING_CONSOLE", "ERROR")
    # Lightning disables an experiment with online=False.
    os.environ["COMET_START_ONLINE"] = str(online).lower()
    folder = Path(save_dir, "comet")
    if not online:
        folder.mkdir(exist_ok=True)
    return CometLogger(offline_directory=str(folder), **options)
