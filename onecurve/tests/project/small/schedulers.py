"""Learning-rate schedules, as the dictionaries that Lightning takes."""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau


def none(optimizer: Optimizer, **of_task: Any) -> None:
    """The learning rate stays."""


def cosine(
    optimizer: Optimizer, *, total_steps: float, warmup: float, **of_task: Any
) -> dict[str, Any]:
    """Rise linearly, then fall along half a cosine, step by step."""
    rising = round(warmup * total_steps)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        return 0.5 * (1 + math.cos(math.pi * min(1, (step - rising) / (total_steps - rising))))

    return {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}


def plateau(optimizer: Optimizer, *, monitor: str, mode: str, **options: Any) -> dict[str, Any]:
    """Fall when the task's metric no longer improves."""
    options.pop("total_steps")
    scheduler = ReduceLROnPlateau(optimizer, mode="min" if mode == "min" else "max", **options)
    return {"scheduler": scheduler, "interval": "epoch", "monitor": monitor}
