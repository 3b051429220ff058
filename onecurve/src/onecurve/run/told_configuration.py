"""Trackers of runs, such as Weights & Biases and MLflow, are told the configuration."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


class ToldConfiguration(Callback):
    """Tells it to the loggers that do not write into the run directory, where config.yaml lies.

    Args:
        config: Without secrets.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The ranks know which of them logs."""
        for logger in trainer.loggers:
            if not isinstance(logger, CSVLogger | TensorBoardLogger):
                logger.log_hyperparams(dict(self.config))
