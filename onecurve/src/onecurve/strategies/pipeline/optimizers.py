"""Optimizers of a rank: they know all parameters, and have gradients of their own layers alone."""

from collections.abc import Iterable
from inspect import Parameter, signature
from typing import Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ...batch.random import draw_from
from ...errors import UserError

STEPS = 3


def check_optimizers(optimizers: Iterable[Optimizer]) -> None:
    """Try others of their kinds on two weights: the gradient of one must not move the other.

    One that cannot be made from its defaults is believed.

    Raises:
        UserError: If it does, as where all are scaled by the norm of all gradients.
    """
    for optimizer in optimizers:
        if _looks_at_others(optimizer):
            raise UserError(
                f"strategy=pipeline: {type(optimizer).__name__} updates a weight by the gradients "
                "of others, of which a rank has only those of its layers; use another optimizer, "
                "or strategy=ddp"
            )


def forget_elsewhere(optimizers: Iterable[Optimizer]) -> None:
    """Drop what some prepare before the first step, as Adagrad does, for other ranks' parameters.

    These have no memory here, and so has that.
    """
    for optimizer in optimizers:
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]


def _looks_at_others(optimizer: Optimizer) -> bool:
    if isinstance(optimizer, LBFGS):  # whose line search asks for a real loss
        return True
    try:
        small, large = (_moved(optimizer, size) for size in (1.0, 1e4))
    except Exception:
        return False
    return not torch.allclose(small, large, rtol=1e-5, atol=0, equal_nan=True)


def _moved(optimizer: Optimizer, size: float) -> Tensor:
    """A weight after some steps beside another one whose gradients have a size."""
    weight, other = (nn.Parameter(torch.linspace(-1, 1, 36).view(6, 6)) for _ in range(2))
    with isolate_rng(), torch.enable_grad():
        draw_from(0)
        twin = type(optimizer)([weight, other], **_options(optimizer))

        def closure() -> Tensor:
            weight.grad, other.grad = weight.detach().cos(), size * other.detach().sin()
            return torch.zeros(())

        for _ in range(STEPS):
            twin.step(closure)  # type: ignore[arg-type]
    return weight.detach()


def _options(optimizer: Optimizer) -> dict[str, Any]:
    """What it was made with, as far as can be seen; on the CPU, and with a step that moves."""
    takes = signature(type(optimizer)).parameters
    anything = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in takes.values())
    options = {
        name: value for name, value in optimizer.defaults.items() if anything or name in takes
    }
    for name in {"fused", "foreach", "capturable"} & options.keys():
        options[name] = False
    if "lr" in options:
        options["lr"] = 0.01
    return options
