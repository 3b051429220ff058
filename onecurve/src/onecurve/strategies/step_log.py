"""What a task's steps log: counted by samples, and over all ranks.

`self.log` of the task is replaced once for a fit or an evaluation. Between steps it averages over
the ranks, whatever it is told. Within a step it keeps what is logged. A task may call it only for
some batches, and ranks that average a value for which others do not wait hang, or take another
collective's numbers: so at a step's end the ranks compare names in a single small message, and only
then are values averaged.

A metric of torchmetrics that is called in a step and logged there has the value of its rank's
share, and a logger is told that of rank 0. So a call notes what it was given, and at the end of the
step the states that come of it are summed over the ranks. Others than sums, such as lists of
predictions, are left as they are; what is logged for an epoch torchmetrics gathers itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, cast
from zlib import crc32

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_sum

from ..compat.of_lightning import DefaultDtype
from ..compat.of_torch import (
    defaults_of,
    reductions_of,
    set_value_of_call,
    state_kept,
    tree_map_only,
)
from ..errors import UserError
from .mesh.ranks import each_rank_has
from .redirect import replaced

# What leaves the result of a reduction as it is; a mean counts by `batch_size` instead.
NEUTRAL = {"sum": 0.0, "max": -torch.inf, "min": torch.inf}
LIGHTNINGS = tuple(signature(LightningModule.log).parameters)


class StepLog:
    """Stands for a task's `log` and `log_dict`.

    Args:
        device: Where the ranks compute.
        group: The ranks that see different samples; None stands for all.
        size: How many these are.
        syncs: Whether there are several ranks, which may all see the same samples.

    Attributes:
        names: What the step under way has logged.
        weight: What it counts by, unless it says by what; None for Lightning's own count.
        counts: Whether its samples are this rank's own.
        is_installed: Whether the task logs through this.
    """

    def __init__(
        self, device: torch.device, group: dist.ProcessGroup | None, size: int, syncs: bool
    ) -> None:
        self.group, self._values_group = group, group
        self._compares = size > 1
        self._syncs = syncs
        if self._compares and device.type != "cpu":
            # Names are compared on the CPU: nobody waits for a GPU.
            ranks = None if group is None else dist.get_process_group_ranks(group)
            self.group = cast(dist.ProcessGroup, dist.new_group(ranks, backend="gloo"))
        self.names: set[str] = set()
        self.weight: Tensor | None = None
        self.counts = True
        self.is_installed = False
        self._is_in_step = False
        self._kept: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = []
        self._metrics: list[Metric] = []
        self._changes = ExitStack()

    def install(self, module: LightningModule) -> None:
        """Let the task log through this, if it does not yet.

        Args:
            module: The task.
        """
        if self.is_installed:
            return
        self.is_installed = True
        self._log, self._log_dict = module.log, module.log_dict
        if self._syncs:
            self._log, self._log_dict = synced(self._log), synced(self._log_dict)
        if self._compares:
            self._metrics = [part for part in module.modules() if isinstance(part, Metric)]
            for metric in self._metrics:
                hook = metric.register_forward_pre_hook(note_given, with_kwargs=True)
                self._changes.callback(hook.remove)
        self._changes.enter_context(replaced(module, "log", self._log_any))
        self._changes.enter_context(replaced(module, "log_dict", self._log_any_dict))

    def remove(self) -> None:
        """Leave the task as it was."""
        self.is_installed = False
        self._changes.close()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Keep what a step logs until all ranks have come to its end.

        Args:
            name: Of the step.
        """
        self._is_in_step = True
        try:
            yield
        finally:
            self._is_in_step = False
            kept, self._kept = self._kept, []
        if self._compares:
            # What rank 0 logs for itself is not averaged.
            names = [key for key, _, _, options in kept if not options.get("rank_zero_only")]
            self.compare(names, name)
            for metric in self._logged_by_step(kept, name):
                share_value(metric, self.counts, self._values_group)
            forget_given(self._metrics)
        for key, value, args, options in kept:
            # Not before: the precision of the step would make another type of a number.
            if not self.counts and not isinstance(value, Metric):
                value, options = _counted_nowhere(value, options)
            self._log(key, value, *args, **options)

    def _logged_by_step(self, kept: Sequence[tuple[Any, ...]], step: str) -> list[Metric]:
        """The metrics of whose value of this batch a logger is told, once each."""
        found: dict[int, Metric] = {}
        for _, value, _, options in kept:
            on_step = options.get("on_step")
            # As Lightning chooses.
            is_by_step = step == "training_step" if on_step is None else on_step
            if isinstance(value, Metric) and is_by_step:
                found[id(value)] = value
        return list(found.values())

    def compare(self, names: Sequence[str], step: str) -> None:
        """Reject names that are not the same on all ranks."""
        number = crc32("\\n".join(names).encode())
        extremes = torch.tensor([number, -number])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        if extremes[0] == -extremes[1]:
            return
        of_ranks = each_rank_has(list(names), self.group)
        everywhere = set.intersection(*map(set, of_ranks))
        some = sorted(set().union(*of_ranks) - everywhere) or ["in another order or number"]
        raise UserError(
            f"self.log: {step} logs {', '.join(some[:3])} on some ranks only, so it cannot be "
            "averaged; log it for every batch, for instance 0 where there is nothing to count, "
            "or a torchmetrics metric"
        )

    def _log_any(self, *args: Any, **options: Any) -> None:
        if self._is_in_step:
            self._keep(*args, **options)
        else:
            self._log(*args, **options)

    def _log_any_dict(self, *args: Any, **options: Any) -> None:
        if self._is_in_step:
            self._keep_dict(*args, **options)
        else:
            self._log_dict(*args, **options)

    def _keep_dict(self, dictionary: Any, *args: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            self._keep(name, value, *args, **options)

    def _keep(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        # A step may go on to work on the tensor in place.
        value = value.detach().clone() if isinstance(value, Tensor) else value
        self.names.add(name)
        if self.weight is not None and options.get("batch_size") is None:
            options["batch_size"] = self.weight
        self._kept.append((name, value, args, options))


def _counted_nowhere(value: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    reduction = options.get("reduce_fx", "mean")
    neutral = NEUTRAL.get(getattr(reduction, "__name__", reduction))
    if neutral is None:
        return value, {**options, "batch_size": 0}
    value = torch.as_tensor(value)
    # The type of the other ranks, which a collective must not mix.
    kind = value.dtype if value.is_floating_point() else torch.get_default_dtype()
    return torch.full_like(value, neutral, dtype=kind), options


def synced(log: Callable[..., None]) -> Callable[..., None]:
    """A task's `log` or `log_dict` that averages over the ranks, whatever it is told."""
    parameters = signature(log).parameters
    names = list(parameters)
    if "sync_dist" in names:
        place = names.index("sync_dist")
    elif any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        place = len(LIGHTNINGS)  # the task's own, which passes on what it is given by name
    else:
        return log  # the task's own, which calls Lightning's in its way

    def synced_log(*args: Any, **options: Any) -> None:
        if len(args) > place:
            args = (*args[:place], True, *args[place + 1 :])
        else:
            options["sync_dist"] = True
        log(*args, **options)

    return synced_log


@contextmanager
def metrics_kept(module: LightningModule) -> Iterator[None]:
    """Let a step leave no trace in the task's metrics: its samples are another rank's."""
    metrics = [part for part in module.modules() if isinstance(part, Metric)]
    with ExitStack() as kept:
        for metric in metrics:
            kept.enter_context(state_kept(metric))
        yield


GIVEN = "_given_in_step"


def note_given(metric: Metric, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """A hook of its calls."""
    # Nothing of the graph, for who copies the task.
    given = tree_map_only(Tensor, Tensor.detach, (args, options))
    vars(metric)[GIVEN] = (*given, torch.get_default_dtype())


def forget_given(metrics: Sequence[Metric]) -> None:
    """The step is over."""
    for metric in metrics:
        vars(metric).pop(GIVEN, None)


def share_value(metric: Metric, counts: bool, group: dist.ProcessGroup | None) -> None:
    """Give a metric the value of the whole batch, for a logger. All ranks call this.

    Args:
        metric: As a step has called it, or not.
        counts: Whether the samples of the step are this rank's own.
        group: The ranks that see different samples; None stands for all.
    """
    defaults = defaults_of(metric)
    sums = all(fx is dim_zero_sum for fx in reductions_of(metric).values())
    if not defaults or not sums or not all(isinstance(each, Tensor) for each in defaults.values()):
        return
    args, options, dtype = vars(metric).get(GIVEN, (None, None, torch.get_default_dtype()))
    called_here = counts and args is not None
    kind = type(metric)
    with torch.no_grad(), state_kept(metric), DefaultDtype(dtype):
        for name, default in defaults.items():
            setattr(metric, name, default.clone().to(metric.device))
        if called_here:
            kind.update(metric, *args, **options)
        states: dict[str, Tensor] = {name: getattr(metric, name) for name in defaults}
        # How many ranks have called it comes with them.
        parts = [torch.full((1,), float(called_here)).to(metric.device), *states.values()]
        flat = torch.cat([part.reshape(-1).double() for part in parts])
        dist.all_reduce(flat, group=group)
        called, *summed = torch.split(flat, [part.numel() for part in parts])
        if called.item():
            for (name, state), total in zip(states.items(), summed, strict=True):
                setattr(metric, name, total.view_as(state).to(state.dtype))
            set_value_of_call(metric, kind.compute(metric))
