"""Collects garbage by the number of steps, instead of whenever Python has made enough objects.

A collection takes some milliseconds, and many of ranks that wait for each other come one after the
other. Source: torchtitan's `GarbageCollection`.
"""

import gc
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class GarbageCollection(Callback):
    """Turns Python's own collection off while training, and on again however that ends.

    What has lived long is looked through at the end of an epoch alone.

    Args:
        every_n_steps: Batches, of training and of validation, from one collection to the next.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        self.every_n_steps = every_n_steps
        self._batches = 0
        self._was_on = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Turn it off, unless somebody did."""
        self._was_on = gc.isenabled()
        gc.disable()

    def on_train_batch_end(self, *_: Any) -> None:
        self._batches += 1
        if self._batches % self.every_n_steps == 0:
            gc.collect(1)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self.on_train_batch_end()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        gc.collect()

    def on_exception(self, *_: Any) -> None:
        """An error, a signal or Ctrl-C."""
        self.teardown()

    def teardown(self, *_: Any, **__: Any) -> None:
        if self._was_on:
            gc.enable()
        self._was_on = False
