"""What an optimizer keeps of each parameter, found by one step with a parameter of four numbers."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class StateSize(NamedTuple):
    """How much an optimizer keeps."""

    copies: float
    """Numbers for each number of a parameter."""
    bytes: float
    """Of what is one number for a whole parameter, such as a count of steps."""


ADAMW = StateSize(2, 4)


def state_size(build: Callable[[Iterable[tuple[str, nn.Parameter]]], Any]) -> StateSize:
    """What an optimizer keeps.

    Args:
        build: Makes one of named parameters, as a task's `optimizer` does.
    """
    parameter = nn.Parameter(torch.ones(2, 2))
    made = build([("weight", parameter)])
    optimizer: Optimizer = made
    parameter.grad = torch.ones(2, 2)
    try:
        optimizer.step()
    except (RuntimeError, TypeError):
        # One that is given a loss, or looks at more than one parameter: taken as AdamW.
        return ADAMW
    state = [value for value in optimizer.state[parameter].values() if isinstance(value, Tensor)]
    copies = sum(value.numel() / 4 for value in state if value.numel() > 1)
    return StateSize(copies, sum(value.nbytes for value in state if value.numel() <= 1))
