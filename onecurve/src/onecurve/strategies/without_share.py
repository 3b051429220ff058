"""A step on a rank that has no sample of its own in it: the batch has fewer samples than ranks.

It takes part all the same, on another rank's sample: the others wait for it in every collective.
What it computes weighs nothing in the gradient; and nothing of it is counted here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric

from .logging_together import log_replaced

# What leaves the result of a reduction as it is; a mean counts by `batch_size` instead.
NEUTRAL = {"sum": 0.0, "max": -torch.inf, "min": torch.inf}


@contextmanager
def counting_nothing(module: LightningModule) -> Iterator[None]:
    """Let the step's metrics and logged values leave no trace."""
    metrics = [part for part in module.modules() if isinstance(part, Metric)]
    before = [(metric._copy_state_dict(), metric._update_count) for metric in metrics]
    try:
        with log_replaced(module, _neutral(module.log)):
            yield
    finally:
        for metric, (state, count) in zip(metrics, before, strict=True):
            for name, value in state.items():
                setattr(metric, name, value)
            metric._update_count, metric._computed = count, None


def _neutral(log: Callable[..., None]) -> Callable[..., None]:
    def counted_nowhere(name: str, value: Any, *args: Any, **options: Any) -> None:
        if not isinstance(value, Metric):
            reduction = options.get("reduce_fx", "mean")
            neutral = NEUTRAL.get(getattr(reduction, "__name__", reduction))
            if neutral is None:
                options["batch_size"] = 0
            else:
                value = torch.as_tensor(value)
                # The type of the other ranks, which a collective must not mix.
                kind = value.dtype if value.is_floating_point() else torch.get_default_dtype()
                value = torch.full_like(value, neutral, dtype=kind)
        log(name, value, *args, **options)

    return counted_nowhere
