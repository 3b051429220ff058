"""What torchmetrics' objects say of a batch that ranks share.

One that is called in a step and logged there has the value of its rank's share, and a logger is
told that of rank 0. So a call notes what it was given, and at the end of the step the states that
come of it are summed over the ranks. Others than sums, such as lists of predictions, are left as
they are; what is logged for an epoch torchmetrics gathers itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_sum

from ..compat.of_torch import defaults_of, reductions_of, set_value_of_call, tree_map_only

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
    fresh = {name: default.clone() for name, default in defaults.items()}
    with torch.no_grad(), _states(metric, fresh), _default_dtype(dtype):
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


@contextmanager
def _states(metric: Metric, instead: dict[str, Tensor]) -> Iterator[None]:
    """Let a metric have other states meanwhile."""
    before = {name: getattr(metric, name) for name in instead}
    try:
        for name, value in instead.items():
            setattr(metric, name, value.to(metric.device))
        yield
    finally:
        for name, value in before.items():
            setattr(metric, name, value)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """That of the step, which the precision of a run may set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
