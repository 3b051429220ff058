"""A train.py of one's own, into which `app/run/test_script.py` writes the lines of a test."""

import sys  # noqa: F401
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Timer  # noqa: F401

from onecurve import app


class Steps(L.Callback):
    """Says how many steps it has seen."""

    def __init__(self, name: str) -> None:
        self.name, self.steps = name, 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        print(f"{self.name} of rank {trainer.global_rank}: {self.steps} steps", flush=True)


@app.main(config="train")
def train(run: app.Run) -> Any:
    cfg = run.cfg
    data, task = run.build(cfg.data), run.build(cfg.task)  # noqa: F841
    # BODY


if __name__ == "__main__":
    train()
