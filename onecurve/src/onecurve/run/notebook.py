"""For notebooks and scripts: what was trained, and what it predicts, in this process."""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from omegaconf import OmegaConf

from ..strategies.single import Single
from .inputs import take_test_set
from .predictions import Predictions, give_step
from .trained import Trained, trained


def load(checkpoint: str | Path, **data: Any) -> Trained:
    """The task of a checkpoint with its weights, in evaluation mode, and its data.

    Args:
        checkpoint: A file that train.py wrote.
        data: Arguments of the data module that are to be others than in training.

    Raises:
        UserError: If there is no such file, or it is of another project.
    """
    parts = trained(
        OmegaConf.create({"checkpoint": str(checkpoint), "data": data}), is_checked=False
    )
    parts.task.eval()
    return parts


def predicted(task: LightningModule, data: LightningDataModule) -> Any:
    """What a task predicts for the samples to predict, or those of the test, in their order.

    Args:
        task: Its `predict_step` predicts; without one it is what the network gives.
        data: Its `predict_dataloader`, or `test_dataloader`, has the samples.

    Returns:
        What the step returns, put together: tensors (N, ...) on the CPU. A list of it for several
        loaders.
    """
    predictions = Predictions()
    give_step(task)
    take_test_set(data)
    trainer = Trainer(
        strategy=Single(),
        devices=1,
        callbacks=[predictions],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.predict(task, datamodule=data, return_predictions=False)
    of_loaders = predictions.joined()
    return of_loaders[0] if len(of_loaders) == 1 else of_loaders
