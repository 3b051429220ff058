"""Shows an optimizer's step the parameters that this rank holds, and nothing of the others.

PyTorch's optimizers update each parameter by itself (LBFGS does not, and is rejected). Others may
combine parameters, and would combine those of this rank's layers alone: a line says so.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer

from ...compat.of_torch import unscaling_within
from ...compat.patching import replaced
from ...errors import UserError, say


def set_up_optimizers(
    optimizers: Iterable[Optimizer], scaler: GradScaler | None, until: ExitStack
) -> None:
    """Keep optimizers from remote parameters, and so a gradient scaler; reject LBFGS.

    What they prepare beforehand, as Adagrad does, is dropped.
    """
    for optimizer in optimizers:
        kind = type(optimizer)
        if isinstance(optimizer, LBFGS):
            raise UserError(
                "strategy=pipeline: LBFGS updates a weight by the gradients of all others, of "
                "which a rank has only those of its layers; use another optimizer, such as AdamW, "
                "or strategy=ddp"
            )
        if not kind.__module__.startswith("torch.") and dist.get_rank() == 0:
            say(
                f"strategy=pipeline: {kind.__name__} is not one of torch.optim, and each rank runs "
                "it on its own layers: right if it updates each parameter by itself, another curve "
                "if it combines several (a norm over all gradients); onecurve.parity shows which; "
                "use one of torch.optim, such as AdamW, or strategy=ddp"
            )
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]
        # A method still: schedulers that are made later ask for its function.
        step = MethodType(_on_local_parameters(optimizer.step), optimizer)
        until.enter_context(replaced(optimizer, "step", step))
    if scaler is not None:
        until.enter_context(unscaling_within(scaler, _local_parameters))


def _on_local_parameters(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def on_local_parameters(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        full = [group["params"] for group in optimizer.param_groups]

        def with_all(value: Any) -> Any:
            """The closure, in which a task finds all parameters."""

            def closure() -> Any:
                with _parameters(optimizer, full):
                    return value()

            return closure if callable(value) else value

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
