"""Fits of these tasks, in one process or in a rank."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from several_fits import quiet_trainer

from onecurve.app.run.predict import Predictions, add_predict_step

from . import data
from .tasks import Plain

# What a Trainer leaves in the environment of its process.
LIGHTNING = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")


class Record(Callback):
    """Every step's loss."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        metrics = trainer.callback_metrics
        self.losses.append(metrics.get("train/loss_step", metrics["train/loss"]).item())


def trained(
    task: Callable[[], LightningModule], loader: Any, strategy: Any, devices: int, **options: Any
) -> dict[str, Any]:
    """Two epochs in float64: losses of the steps, metrics at the end, weights."""
    seed_everything(1, verbose=False)
    record = Record()
    options = {"max_epochs": 2, "precision": "64-true", "callbacks": [record], **options}
    trainer = quiet_trainer(strategy, devices, **options)
    trainer.fit(task(), loader)
    weights = trainer.strategy.lightning_module_state_dict()
    return {
        "losses": record.losses,
        "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
        "weights": {name: torch.as_tensor(value).tolist() for name, value in weights.items()},
    }


def predicted(strategy: Any, devices: int) -> list[Any]:
    """What is predicted for two streams, whose last batches are smaller than the ranks."""
    seed_everything(1, verbose=False)
    kept, module = Predictions(), Plain()
    add_predict_step(module)
    trainer = quiet_trainer(strategy, devices, precision="64-true", callbacks=[kept])
    trainer.predict(module, [data.stream(), data.whole_batches()], return_predictions=False)
    return [None if rows is None else rows.tolist() for rows in kept.joined()]
