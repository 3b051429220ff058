"""Collects garbage on all ranks in the same steps, instead of whenever Python decides to.

A collection takes some milliseconds; ranks that collect at different times wait for each other.
Source: torchtitan's `GarbageCollection`.
"""

import gc
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class GarbageCollection(Callback):
    """Turns automatic collection off in training, and on again however that ends.

    Batches of training and of validation count. The oldest generation is collected only at the end
    of an epoch.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        self.every_n_steps = every_n_steps
        self._batches = 0
        self._was_on = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._batches += 1
        if self._batches % self.every_n_steps == 0:
            gc.collect(1)

    on_validation_batch_end = on_train_batch_end

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        gc.collect()

    def teardown(self, *_: Any, **__: Any) -> None:
        if self._was_on:
            gc.enable()
        self._was_on = False

    on_exception = teardown
