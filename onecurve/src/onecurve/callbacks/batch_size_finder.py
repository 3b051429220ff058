"""Finds the largest batch that fits into memory."""

from contextlib import nullcontext
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder

from ..arguments import configured_by
from ..batch.random import kept_state
from ..compat.of_lightning import loaders_of, set_loaders
from ..errors import say
from .options import BatchSizeSearchOptions


class BatchSizeSearch(BatchSizeFinder):
    """Lightning's BatchSizeFinder, which leaves no trace in the run that follows.

    It stops at ``largest``: on a CPU, running out of memory cannot be caught.
    """

    @configured_by(BatchSizeSearchOptions, "callbacks.batch_size_finder")
    def __init__(self, options: BatchSizeSearchOptions) -> None:
        # Lightning's does not try its `max_val`.
        largest = options.largest
        super().__init__("power", options.steps, init_val=options.first, max_val=2 * largest)
        self.largest = largest
        self.apply = options.apply
        self.final_facts: dict[str, float] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if trainer.fast_dev_run or trainer.ckpt_path:  # type: ignore[attr-defined]
            return
        before, epochs = data.batch_size, trainer.fit_loop.max_epochs
        is_set_up = loaders_of(trainer.fit_loop) is not None
        # A short run has fewer steps than the search needs.
        trainer.fit_loop.max_epochs = -1
        with kept_state():
            self.scale_batch_size(trainer, pl_module)
        trainer.fit_loop.max_epochs = epochs
        found = min(self.optimal_batch_size or 0, self.largest)
        if not found:
            say(f"batch_size_finder: not even {before} samples fit")
            return
        self.final_facts = {"largest_batch_size": found}
        data.batch_size = found if self.apply else before
        set_loaders(trainer.fit_loop, None)
        # Setting up loaders draws a random number; one set up before has drawn it already.
        with kept_state() if is_set_up else nullcontext():
            trainer.fit_loop.setup_data()
        # Schedulers count steps, and there may be fewer now.
        trainer.strategy.setup_optimizers(trainer)
        does = "training with it" if self.apply else f"training continues with {before}"
        print(f"batch_size_finder: data.batch_size={found} fits; {does}", flush=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do not search: Lightning's searches before an evaluation, too."""

    on_test_start = on_predict_start = on_validation_start
