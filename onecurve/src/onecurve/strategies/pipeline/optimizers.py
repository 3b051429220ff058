"""What an optimizer sees of the parameters that other ranks hold: nothing, within its step.

Its groups list all parameters, so that names, ids and `requires_grad` are those of one process.
PyTorch's optimizers update each parameter by itself (LBFGS does not). One that combines several, as
by a norm over all gradients, would combine those of this rank's layers alone: those known to do so
are rejected, and a line tells of any other that is not one of torch.optim.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from ...compat.of_torch import unscaling_within
from ...compat.patching import replaced
from ...errors import UserError, say

COMBINE = ("torch.optim.lbfgs.LBFGS", "timm.optim.lamb.Lamb", "prodigyopt.prodigy.Prodigy")
INSTEAD = "use one of torch.optim, such as AdamW, or strategy=ddp"


def set_up_optimizers(
    optimizers: Iterable[Optimizer], scaler: GradScaler | None, until: ExitStack
) -> None:
    """Keep optimizers, and so a gradient scaler, from remote parameters.

    What they prepare beforehand, as Adagrad does, is dropped.
    """
    for optimizer in optimizers:
        if optimizer.param_groups:  # not Lightning's own, of a task without an optimizer
            _check_kind(type(optimizer))
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]
        # A method still: schedulers that are made later ask for its function.
        step = MethodType(_on_local_parameters(optimizer.step), optimizer)
        until.enter_context(replaced(optimizer, "step", step))
    if scaler is not None:
        until.enter_context(unscaling_within(scaler, _local_parameters))


def _check_kind(kind: type[Optimizer]) -> None:
    bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if any(name in COMBINE for name in bases):
        raise UserError(
            f"strategy=pipeline: {kind.__name__} updates a parameter by the gradients of others, "
            f"and a rank has only those of its own layers; {INSTEAD}"
        )
    if not kind.__module__.startswith("torch.") and dist.get_rank() == 0:
        say(
            f"strategy=pipeline: {kind.__name__} is not one of torch.optim, and each rank runs it "
            "on its own layers: right if it updates each parameter by itself, another curve if it "
            f"combines several (a norm over all gradients); onecurve.parity shows which; {INSTEAD}"
        )


def _on_local_parameters(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def on_local_parameters(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        # In the closure a task finds all parameters.
        full = _parameters(optimizer, [group["params"] for group in optimizer.param_groups])

        def with_all(value: Any) -> Any:
            return full(value) if callable(value) else value

        with _local_parameters(optimizer):
            return step(*map(with_all, args), **{n: with_all(v) for n, v in kwargs.items()})

    return on_local_parameters


@contextmanager
def _parameters(optimizer: Optimizer, lists: list[list[Tensor]]) -> Iterator[None]:
    """Within the context, each group lists these parameters."""
    groups = optimizer.param_groups
    before = [group["params"] for group in groups]
    try:
        for group, parameters in zip(groups, lists, strict=True):
            group["params"] = parameters
        yield
    finally:
        for group, parameters in zip(groups, before, strict=True):
            group["params"] = parameters


@contextmanager
def _local_parameters(optimizer: Optimizer) -> Iterator[None]:
    full = [group["params"] for group in optimizer.param_groups]
    with _parameters(optimizer, [[each for each in ps if not each.is_meta] for ps in full]):
        yield
