"""The states of torchmetrics where ranks share batches."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from ..compat.of_torch import defaults_of, reductions_of, state_kept
from ..compat.patching import replaced


@contextmanager
def metrics_kept(module: LightningModule) -> Iterator[None]:
    """Restore the task's metrics after a step on another rank's samples.

    They keep the types that the step has given them: ranks gather states of one type.
    """
    metrics = [part for part in module.modules() if isinstance(part, Metric)]
    with ExitStack() as kept:
        for metric in metrics:
            kept.enter_context(state_kept(metric))
        yield
        empty = [_empty_states(metric) for metric in metrics]
    for metric, states in zip(metrics, empty, strict=True):
        for name, like in states.items():
            state = getattr(metric, name)
            setattr(metric, name, state.to(like) if isinstance(state, Tensor) else state or [like])


def _empty_states(metric: Metric) -> dict[str, Tensor]:
    """No values of the types that a metric's states have now."""
    reductions = reductions_of(metric)
    found = {}
    for name in defaults_of(metric):
        state = getattr(metric, name)
        if isinstance(state, Tensor):
            found[name] = state.new_empty(0)
        elif state and reductions[name] is dim_zero_cat:
            found[name] = state[-1][:0] if state[-1].ndim else state[-1].new_empty(0)
    return found


def syncing_over(group: dist.ProcessGroup | None) -> AbstractContextManager[None]:
    """Within the context, metrics without a group of their own synchronise over this one.

    Not a group for each: a metric that holds one cannot be copied (MetricTracker copies its metric
    for each epoch), and some are held in a dictionary, or by a callback.
    """
    sync = Metric.sync

    def sync_over(
        self: Metric, dist_sync_fn: Any = None, process_group: Any = None, **options: Any
    ) -> None:
        sync(self, dist_sync_fn, process_group or self.process_group or group, **options)

    return replaced(Metric, "sync", sync_over)
