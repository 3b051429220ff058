"""What an optimizer sees of the parameters that other ranks hold: nothing, within its step.

Its groups list all parameters, so that names, ids and `requires_grad` are those of one process.
PyTorch's optimizers update each parameter by itself (LBFGS does not). Others are tried out on tiny
parameters before the first step: one that combines several, as Lamb does by the norm over all
gradients, would combine those of this rank's layers alone, and is rejected.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import wraps
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer

from ...batch.random import kept_state
from ...compat.of_torch import unscaling_within, without_hooks
from ...compat.patching import replaced
from ...errors import UserError, say

# Prodigy's estimate, for example, first moves after a step.
STEPS = 3
LARGEST = 3
"""The most entries along a dimension of a parameter that is tried out."""


def set_up_optimizers(
    optimizers: Iterable[Optimizer], scaler: GradScaler | None, until: ExitStack
) -> None:
    """Keep optimizers, and so a gradient scaler, from remote parameters.

    What they prepare beforehand, as Adagrad does, is dropped.
    """
    for optimizer in optimizers:
        _check_kind(optimizer)
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]
        # A method still: schedulers that are made later ask for its function.
        step = MethodType(_on_local_parameters(optimizer.step), optimizer)
        until.enter_context(replaced(optimizer, "step", step))
    if scaler is not None:
        until.enter_context(unscaling_within(scaler, _local_parameters))


def _check_kind(optimizer: Optimizer) -> None:
    kind = type(optimizer)
    if isinstance(optimizer, LBFGS):
        combines: bool | None = True
    elif kind.__module__.startswith("torch."):
        return
    else:
        combines = combines_parameters(optimizer)
    instead = "use one of torch.optim, such as AdamW, or strategy=ddp"
    if combines:
        raise UserError(
            f"strategy=pipeline: {kind.__name__} updates a parameter by the gradients of others, "
            f"and a rank has only those of its own layers; {instead}"
        )
    if combines is None and dist.get_rank() == 0:
        say(
            f"strategy=pipeline: {kind.__name__} is not one of torch.optim, and could not be tried "
            "out; each rank runs it on its own layers: right if it updates each parameter by "
            "itself, another curve if it combines several (a norm over all gradients); "
            f"onecurve.parity shows which; {instead}"
        )


def combines_parameters(optimizer: Optimizer) -> bool | None:
    """Whether an optimizer updates a parameter by the gradients of others.

    A copy of it trains tiny parameters for a few steps, twice: the second time with larger
    gradients, but for the first parameter of each group. None if it cannot be copied, or stepped.
    """
    try:
        with kept_state(), torch.compiler.set_stance("force_eager"):
            one, other = (_firsts_after(optimizer, scale) for scale in (1.0, 100.0))
    except Exception:  # whatever a step does with what it was not made for
        return None
    return not torch.equal(one, other)


def _firsts_after(optimizer: Optimizer, scale: float) -> Tensor:
    """The first parameter of each group after some steps, given the scale of others' gradients."""
    copies = {
        id(parameter): torch.ones([min(size, LARGEST) for size in parameter.shape]).requires_grad_()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    tried = object.__new__(type(optimizer))
    settings = {**without_hooks(optimizer), "state": defaultdict(dict)}
    tried.__setstate__(deepcopy(settings, copies))
    torch.manual_seed(0)
    for _ in range(STEPS):
        for group in tried.param_groups:
            for number, parameter in enumerate(group["params"]):
                parameter.grad = torch.randn_like(parameter) * (scale if number else 1.0)
        tried.step(lambda: 0.0)
    firsts = [group["params"][0] for group in tried.param_groups if group["params"]]
    return torch.cat([first.detach().flatten() for first in firsts]).nan_to_num()


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
