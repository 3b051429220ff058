"""Averages what a task's steps log over all ranks, weighted by samples.

`self.log` of the task and of callbacks is replaced once for a fit or an evaluation. Between steps
it averages over the ranks whatever `sync_dist` says; in a hook at the end of a batch, such as
`on_train_batch_end`, with the weights of that batch. Within a step it collects the values: a task
may log a value for some batches only, and a collective that some ranks do not join would hang or
mix up values. So at the end of a step the ranks first compare the names in one small message, then
average.

A torchmetrics metric that a step calls and logs has the value of this rank's share in that step, as
in Lightning. Values of an epoch are synchronised by torchmetrics itself, over the ranks that see
different samples (`syncing_over`).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from inspect import signature
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from ..batch.epoch_sums import NEUTRAL
from ..compat.of_lightning import callbacks_of, ends_batch
from ..compat.of_torch import reductions_of, state_kept
from ..compat.patches import replaced
from ..errors import UserError
from .mesh.ranks import Ranks, are_alike, gather_objects

if TYPE_CHECKING:
    from .step import StepContext


# By name, whichever way they are passed.
ARGUMENTS = tuple(signature(LightningModule.log).parameters)[3:]


class Logged(NamedTuple):
    """The arguments of a call of `log`."""

    name: str
    value: Any
    options: dict[str, Any]


class StepLog:
    """Redirects `log` of a task and of callbacks, which `log_dict` calls for each value."""

    def __init__(self, ranks: Ranks) -> None:
        self._size, self._group = ranks.sizes.data_parallel, ranks.samples_group
        if self._size > 1 and ranks.device.type != "cpu":
            # Names are compared on the CPU, so that no step waits for the GPU.
            members = dist.get_process_group_ranks(ranks.samples_group)
            self._group = cast(dist.ProcessGroup, dist.new_group(members, backend="gloo"))
        self._context: StepContext | None = None
        # What the step under way has logged; None outside of steps.
        self._collected: list[Logged] | None = None
        self._changes = ExitStack()

    def install(self, task: LightningModule) -> None:
        """Redirect `log` for a fit or an evaluation."""
        self._task, self._log = task, task.log
        # Lightning has given the task's method to each callback.
        for each in (task, *callbacks_of(task.trainer, Callback)):
            self._changes.enter_context(replaced(each, "log", self._log_any))

    def remove(self) -> None:
        """Restore `log`."""
        self._context = None
        self._changes.close()

    @contextmanager
    def step(self, context: "StepContext") -> Iterator[None]:
        """Collect what a step logs, and log it once all ranks have finished the step."""
        self._context, self._collected = context, []
        try:
            yield
        finally:
            collected, self._collected = self._collected, None
        if self._size > 1:
            # Values that only rank 0 logs are not averaged.
            compared = [each for each in collected if not each.options.get("rank_zero_only")]
            self._compare([each.name for each in compared], context.name)
        for each in collected:
            self._write(each, context)

    def _log_any(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        options |= zip(ARGUMENTS, args, strict=False)
        options["sync_dist"] = True
        context = self._context if self._collected is not None or ends_batch(self._task) else None
        # The step may change a tensor in place later, and its precision gives a number its type.
        if isinstance(value, Tensor):
            value = value.detach().clone()
            # Of sharded weights or gradients: all ranks log it.
            value = value.full_tensor() if isinstance(value, DTensor) else value
        elif isinstance(value, Number):
            value = torch.tensor(value, device=self._task.device, dtype=torch.get_default_dtype())
        if context and context.counted is not None and options.get("batch_size") is None:
            # Of all ranks together, the samples: as in one process, batches count by these.
            here = context.samples * context.weight / self._size
            options["batch_size"] = context.counted.new_tensor(here)
        logged = Logged(name, value, options)
        if self._collected is None:
            self._write(logged, context)
        else:
            self._collected.append(logged)

    def _write(self, logged: Logged, context: "StepContext | None" = None) -> None:
        if context is not None and not context.counts:
            logged = _made_neutral(logged)
        name, value, options = logged
        if isinstance(value, Tensor) and value.is_meta:
            strategy: Any = self._task.trainer.strategy
            raise UserError(
                f"strategy={strategy.name}: self.log of {name} gets a number of weights or "
                "gradients that another rank has; use self.trainer.strategy.gradient_norm() for a "
                "norm, or strategy=ddp"
            )
        self._log(name, value, **options)

    def _compare(self, names: list[str], step: str) -> None:
        """Reject names that only some ranks have logged."""
        if are_alike(names, self._group):
            return
        of_ranks = gather_objects(names, self._group)
        everywhere = set.intersection(*map(set, of_ranks))
        some = sorted(set().union(*of_ranks) - everywhere) or ["in another order or number"]
        raise UserError(
            f"self.log: {step} logs {', '.join(some[:3])} on some ranks only, so it cannot be "
            "averaged; log it for every batch, for instance 0 where there is nothing to count, "
            "or a torchmetrics metric"
        )


def _made_neutral(logged: Logged) -> Logged:
    """Keep a value from another rank's samples out of the reduction."""
    value, options = logged.value, logged.options
    if isinstance(value, Metric):
        return logged
    reduction = options.get("reduce_fx", "mean")
    # A mean gets `batch_size=0` instead.
    neutral = NEUTRAL.get(getattr(reduction, "__name__", reduction))
    if neutral is None:
        return logged._replace(options={**options, "batch_size": 0})
    # The type that the other ranks use: a collective must not mix types.
    kind = value.dtype if value.is_floating_point() else torch.get_default_dtype()
    return logged._replace(value=torch.full_like(value, neutral, dtype=kind))


@contextmanager
def metrics_kept(module: LightningModule) -> Iterator[None]:
    """Restore the task's metrics after a step on another rank's samples.

    They keep the types that the step has given them: ranks gather states of one type.
    """
    metrics = [submodule for submodule in module.modules() if isinstance(submodule, Metric)]
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
    states = {}
    for name, state in metric.metric_state.items():
        if isinstance(state, Tensor):
            states[name] = state.new_empty(0)
        elif state and reductions[name] is dim_zero_cat:
            states[name] = state[-1][:0] if state[-1].ndim else state[-1].new_empty(0)
    return states


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
