"""For notebooks and scripts: what was trained, and what it predicts, in this process."""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from omegaconf import OmegaConf

from ...strategies.single import Single
from .instantiate import Trained, load_trained
from .predict import Predictions, add_predict_step, predict_on_test_set


def load(checkpoint: str | Path, **data: Any) -> Trained:
    """The task of a checkpoint that train.py wrote, in evaluation mode, and its data.

    Args:
        checkpoint: The file.
        data: Arguments of the data module that replace those of training.
    """
    parts = load_trained(
        OmegaConf.create({"checkpoint": str(checkpoint), "data": data}), is_checked=False
    )
    parts.task.eval()
    return parts


def predicted(task: LightningModule, data: LightningDataModule) -> Any:
    """The predictions of a task for all samples, in their order.

    Args:
        task: Its `predict_step` predicts; without one its network's outputs are returned.
        data: Its `predict_dataloader`, or else its `test_dataloader`, has the samples.

    Returns:
        What the step returns, concatenated: tensors (N, ...) on the CPU. A list for several
        loaders.
    """
    predictions = Predictions()
    add_predict_step(task)
    predict_on_test_set(data)
    trainer = Trainer(
        devices=1,
        strategy=Single(),
        callbacks=[predictions],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.predict(task, datamodule=data, return_predictions=False)
    of_loaders = predictions.joined()
    return of_loaders[0] if len(of_loaders) == 1 else of_loaders
