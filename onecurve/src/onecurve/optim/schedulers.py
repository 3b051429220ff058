"""Learning-rate schedules, as the `lr_scheduler` dictionaries that Lightning takes.

All have one signature: `total_steps` is the number of optimizer steps in the run; `monitor` and
`mode` (min or max) are the metric of the task that a schedule may react to. The steps of a run, by
which everything that is due every so many steps is counted, are `steps_done` and `steps_in_all`.
"""

import math
from typing import Any

from lightning.pytorch import Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from ..errors import UserError

LRScheduler = dict[str, Any]


def no_scheduler(optimizer: Optimizer, *, total_steps: float, monitor: str, mode: str) -> None:
    """Leave the learning rate as it is."""


def cosine(
    optimizer: Optimizer,
    *,
    total_steps: float,
    monitor: str,
    mode: str,
    warmup: float,
    final: float,
) -> LRScheduler:
    """Increase linearly, then decrease along half a cosine, step by step.

    Source: Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", 2017.

    `warmup` is the share of the run in which the learning rate increases, 0 to 1; `final` is the
    last learning rate, as a share of the highest.

    Raises:
        UserError: The length of the run is not known.
    """
    steps = finite_steps("cosine", total_steps)
    warmup_steps = round(warmup * steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))

    return {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}


def step(
    optimizer: Optimizer,
    *,
    total_steps: float,
    monitor: str,
    mode: str,
    step_size: int,
    **options: Any,
) -> LRScheduler:
    """Multiply by a factor every `step_size` epochs: `StepLR` and its arguments."""
    return {"scheduler": StepLR(optimizer, step_size, **options), "interval": "epoch"}


def one_cycle(
    optimizer: Optimizer, *, total_steps: float, monitor: str, mode: str, **options: Any
) -> LRScheduler:
    """Increase to the optimizer's learning rate, then decrease: `OneCycleLR` and its arguments.

    Raises:
        UserError: The length of the run is not known, or the optimizer has no momentum to cycle.
    """
    steps = finite_steps("one_cycle", total_steps)
    highest = [group["lr"] for group in optimizer.param_groups]
    try:
        scheduler = OneCycleLR(optimizer, max_lr=highest, total_steps=steps, **options)
    except ValueError as error:
        raise UserError(f"scheduler=one_cycle: {error}") from error
    return {"scheduler": scheduler, "interval": "step"}


def plateau(
    optimizer: Optimizer, *, total_steps: float, monitor: str, mode: str, **options: Any
) -> LRScheduler:
    """Decrease when the task's metric stops improving: `ReduceLROnPlateau` and its arguments."""
    scheduler = ReduceLROnPlateau(optimizer, mode="min" if mode == "min" else "max", **options)
    return {"scheduler": scheduler, "interval": "epoch", "monitor": monitor}


def finite_steps(name: str, total_steps: float) -> int:
    """The length of the run in steps, at least 1; a run without an end is rejected."""
    if not math.isfinite(total_steps):
        raise UserError(
            f"scheduler={name}: needs the length of the run; "
            "set trainer.max_epochs or trainer.max_steps, or use scheduler=none"
        )
    return max(1, int(total_steps))


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
