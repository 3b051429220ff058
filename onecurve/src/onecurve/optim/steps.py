"""The steps of a run, by which everything that is due every so many steps is counted."""

import math
from typing import Any

from lightning.pytorch import Trainer


def steps_done(trainer: Trainer) -> int:
    """The steps of the run so far; of a task that steps its optimizers by hand, its batches.

    Lightning's `global_step` counts the steps of each optimizer then.
    """
    if trainer.lightning_module.automatic_optimization:
        return trainer.global_step
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    return int(batches.processed)


def steps_in_all(trainer: Trainer) -> float:
    """The steps of the whole run, as `steps_done` counts them, as far as is known."""
    steps, most = trainer.global_step, trainer.max_steps
    if trainer.lightning_module.automatic_optimization or most < 0 or not steps:
        return trainer.estimated_stepping_batches
    # The run ends after so many steps of all optimizers together.
    epochs = math.inf if trainer.max_epochs == -1 else trainer.max_epochs or 1
    batches = math.ceil(most * steps_done(trainer) / steps)
    return min(trainer.num_training_batches * epochs, batches)
