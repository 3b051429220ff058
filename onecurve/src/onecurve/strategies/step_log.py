"""Averages what a task's steps log over all ranks, weighted by samples.

`self.log` of the task and of callbacks is replaced once for a fit or an evaluation. Between steps
it averages over the ranks whatever `sync_dist` says; in a hook at the end of a batch, such as
`on_train_batch_end`, with the weights of that batch. Within a step it collects the values: a task
may log a value for some batches only, and a collective that some ranks do not join would hang or
mix up values. So at the end of a step the ranks first compare the names in one small message, then
average.

A torchmetrics metric that a step calls and logs has the value of this rank's share in that step, as
in Lightning; a line says so. Values of an epoch are synchronised by torchmetrics itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from ..compat.of_lightning import callbacks_of, ends_batch
from ..compat.of_torch import defaults_of, reductions_of, state_kept
from ..compat.patching import replaced
from ..errors import UserError, say, some_of
from .mesh.ranks import Ranks, each_rank_has

if TYPE_CHECKING:
    from .step import StepContext

Logged = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""The arguments of a call of `log`."""
# The neutral element of each reduction; a mean gets `batch_size=0` instead.
NEUTRAL = {"sum": 0.0, "max": -torch.inf, "min": torch.inf}


class StepLog:
    """Redirects `log` of a task and of callbacks, which `log_dict` calls for each value.

    Attributes:
        names: The names that the last step has logged.
    """

    def __init__(self, ranks: Ranks | None) -> None:
        self.names: list[str] = []
        self._syncs = ranks is not None
        self._compares = ranks is not None and ranks.sizes.data_parallel > 1
        self._names_group = None if ranks is None else ranks.samples_group
        if ranks is not None and self._compares and ranks.device.type != "cpu":
            # Names are compared on the CPU, so that no step waits for the GPU.
            members = dist.get_process_group_ranks(ranks.samples_group)
            self._names_group = cast(dist.ProcessGroup, dist.new_group(members, backend="gloo"))
        self._is_installed = False
        self._context: StepContext | None = None
        # What the step under way has logged; None outside of steps.
        self._collected: list[Logged] | None = None
        self._reported_metrics = False
        self._changes = ExitStack()

    def install(self, module: LightningModule) -> None:
        """Redirect `log`, unless that has been done."""
        if self._is_installed:
            return
        self._is_installed = True
        self._module, self._log = module, module.log
        if self._syncs and takes(self._log, "sync_dist"):
            self._log = synced(self._log)
        # Lightning has given the task's method to each callback.
        for each in (module, *callbacks_of(module.trainer, Callback)):
            self._changes.enter_context(replaced(each, "log", self._log_any))

    def remove(self) -> None:
        """Restore `log`."""
        self._is_installed = False
        self._changes.close()

    @contextmanager
    def step(self, context: "StepContext") -> Iterator[None]:
        """Collect what a step logs, and log it once all ranks have finished the step."""
        self._context, self._collected = context, []
        try:
            yield
        finally:
            collected, self._collected = self._collected, None
        self.names = list(dict.fromkeys(name for name, *_ in collected))
        if self._compares:
            # Values that only rank 0 logs are not averaged.
            names = [name for name, _, _, options in collected if not options.get("rank_zero_only")]
            self.compare(names, context.name)
            self._report_metrics(collected, context.name)
        for each in collected:
            # Outside of the step, whose precision would give a number another type.
            self._log_of_batch(*each)

    def _log_of_batch(
        self, name: str, value: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        counts = self._context is None or self._context.counts
        if not counts and not isinstance(value, Metric):
            value, options = _made_neutral(value, options)
        self._give(name, value, *args, **options)

    def _give(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        if isinstance(value, Tensor) and value.is_meta:
            strategy: Any = self._module.trainer.strategy
            raise UserError(
                f"strategy={strategy.name}: self.log of {name} gets a number of weights or "
                "gradients that another rank has; use self.trainer.strategy.gradient_norm() for a "
                "norm, or strategy=ddp"
            )
        self._log(name, value, *args, **options)

    def _report_metrics(self, logged: Sequence[Logged], step: str) -> None:
        """Print once which metrics show a rank's own samples in a step."""
        if self._reported_metrics:
            return
        names = []
        for key, value, _, options in logged:
            on_step = options.get("on_step")
            is_by_step = step == "training_step" if on_step is None else on_step  # as in Lightning
            if isinstance(value, Metric) and is_by_step and not value.dist_sync_on_step:
                names.append(key)
        self._reported_metrics = bool(names)
        if names and self._module.trainer.is_global_zero:
            strategy: Any = self._module.trainer.strategy
            say(
                f"strategy={strategy.name}: {some_of(names)} of a step is that of the first rank's "
                "samples, and of an epoch that of all; make the metric with dist_sync_on_step=True "
                "for that of the global batch in each step, too"
            )

    def compare(self, names: Sequence[str], step: str) -> None:
        """Reject names that only some ranks have logged."""
        number = crc32("\n".join(names).encode())
        extremes = torch.tensor([number, -number])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self._names_group)
        if extremes[0] == -extremes[1]:
            return
        of_ranks = each_rank_has(list(names), self._names_group)
        everywhere = set.intersection(*map(set, of_ranks))
        some = sorted(set().union(*of_ranks) - everywhere) or ["in another order or number"]
        raise UserError(
            f"self.log: {step} logs {', '.join(some[:3])} on some ranks only, so it cannot be "
            "averaged; log it for every batch, for instance 0 where there is nothing to count, "
            "or a torchmetrics metric"
        )

    def _log_any(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        if self._collected is None and not ends_batch(self._module):
            self._give(name, value, *args, **options)
            return
        # The step may change the tensor in place later.
        value = value.detach().clone() if isinstance(value, Tensor) else value
        counted = None if self._context is None else self._context.counted
        if counted is not None and options.get("batch_size") is None:
            options["batch_size"] = counted
        if self._collected is None:
            self._log_of_batch(name, value, args, options)
        else:
            self._collected.append((name, value, args, options))


def _made_neutral(value: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keep a value from another rank's samples out of the reduction."""
    reduction = options.get("reduce_fx", "mean")
    neutral = NEUTRAL.get(getattr(reduction, "__name__", reduction))
    if neutral is None:
        return value, {**options, "batch_size": 0}
    value = torch.as_tensor(value)
    # The type that the other ranks use: a collective must not mix types.
    kind = value.dtype if value.is_floating_point() else torch.get_default_dtype()
    return torch.full_like(value, neutral, dtype=kind), options


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter; an override of `log` may pass keyword arguments on."""
    parameters = signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def synced(log: Callable[..., None]) -> Callable[..., None]:
    """Make a task's `log` average over the ranks whatever `sync_dist` says."""
    names = tuple(signature(log).parameters)
    # An override that passes keyword arguments on has no place for it.
    place = names.index("sync_dist") if "sync_dist" in names else math.inf

    def synced_log(*args: Any, **options: Any) -> None:
        if len(args) > place:
            log(*(True if number == place else each for number, each in enumerate(args)), **options)
        else:
            log(*args, **options | {"sync_dist": True})

    return synced_log


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
