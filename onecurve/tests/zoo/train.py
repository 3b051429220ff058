"""Trains rows of the zoo in one process, or in a rank of two."""

import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from several_fits import quiet_trainer

import onecurve
from onecurve.app.run.predict import Predictions, add_predict_step

from . import data
from .rows import ROWS, Row
from .tasks import Plain

# What a Trainer leaves in the environment of its process.
LIGHTNING = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
MADE = {
    "single": lambda: onecurve.Single(),
    "dp": lambda: onecurve.DP(),
    "ddp": lambda: onecurve.DDP(timeout_seconds=30),
    "fsdp": lambda: onecurve.FSDP(timeout_seconds=30),
    "pipeline": lambda: onecurve.Pipeline(microbatches=2, timeout_seconds=30),
    "pipeline by gpipe": lambda: onecurve.Pipeline(
        schedule="gpipe", microbatches=2, timeout_seconds=30
    ),
    "replicated shards": lambda: onecurve.FSDP(replicas=2, timeout_seconds=30),
    "replicated pipelines": lambda: onecurve.Pipeline(
        microbatches=2, replicas=2, timeout_seconds=30
    ),
}
DEVICES = {"single": 1, "replicated shards": 4, "replicated pipelines": 4}


class Record(Callback):
    """Every step's loss."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        metrics = trainer.callback_metrics
        self.losses.append(metrics.get("train/loss_step", metrics["train/loss"]).item())


def train_rows(strategy: str, names: Sequence[str]) -> dict[str, Any]:
    """For each row what was trained, or the line with which it was refused, or a traceback."""
    results: dict[str, Any] = {}
    for name in names:
        try:
            results[name] = trained(ROWS[name], strategy)
        except onecurve.UserError as error:
            results[name] = str(error)
        except Exception:
            results[name] = traceback.format_exc()
    return results


def trained(row: Row, strategy: str) -> dict[str, Any]:
    """Two epochs in float64: what was said, losses of the steps, metrics at the end, weights."""
    seed_everything(1, verbose=False)
    record = Record()
    named = "pipeline by gpipe" if row.by_gpipe and strategy == "pipeline" else strategy
    trainer = trainer_with(named, record, max_epochs=2, **row.trainer)
    module = row.task()
    with redirect_stderr(StringIO()) as said:
        trainer.fit(module, row.data(), row.validation())
    weights = trainer.strategy.lightning_module_state_dict()
    return {
        "said": [line for line in said.getvalue().splitlines() if line.startswith("strategy=")],
        "losses": record.losses,
        "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
        "weights": {name: torch.as_tensor(value).tolist() for name, value in weights.items()},
    }


def predicted(strategy: str) -> list[Any]:
    """What is predicted for two streams, whose last batches are smaller than the ranks."""
    seed_everything(1, verbose=False)
    kept, module = Predictions(), Plain()
    add_predict_step(module)
    trainer = trainer_with(strategy, kept)
    trainer.predict(module, [data.stream(), data.whole_batches()], return_predictions=False)
    return [None if rows is None else rows.tolist() for rows in kept.joined()]


def trainer_with(strategy: str, callback: Callback, **options: Any) -> Trainer:
    """A Trainer in float64 that says and writes nothing."""
    own = {"devices": DEVICES.get(strategy, 2), "precision": "64-true", "callbacks": [callback]}
    return quiet_trainer(MADE[strategy](), **own, **options)
