"""What methods of a task return: what cannot train is one line, which names method and file."""

import dis
import inspect
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from ..errors import UserError, in_short, say


def reject_output(task: LightningModule, output: Any) -> None:
    """Reject what `training_step` returns, unless it is a loss, or None, which skips a batch."""
    step = _where(task, "training_step")
    loss = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
        if loss is None:
            keys = ", ".join(map(str, output)) or "none"
            raise UserError(f"{step} returned a dict without a loss (keys: {keys}); add 'loss'")
    if loss is None:
        code = _code(task, "training_step")
        if code is not None and _returns_nothing(code):
            raise UserError(f"{step} returns nothing; end it with `return loss`")
    elif not isinstance(loss, Tensor):
        given = f"{type(loss).__name__} ({in_short(loss, 30)})"
        raise UserError(f"{step} returned a {given}; return the loss as a tensor, without .item()")
    elif loss.numel() != 1:
        shape = tuple(loss.shape)
        raise UserError(
            f"{step} returned a tensor of shape {shape}, and a loss is one number; return its "
            ".mean()"
        )


def reject_without_gradient(task: LightningModule, loss: Tensor) -> None:
    """Reject a loss that no backward pass can begin with."""
    if loss.requires_grad or is_overridden("backward", task):
        return
    raise UserError(
        f"{_where(task, 'training_step')} returned a loss without a gradient; leave out .detach() "
        "and torch.no_grad(), and compute it from parameters that are not frozen"
    )


def skips_batches(task: LightningModule, strategy: str) -> str:
    """The line for a batch that a task skips in one process."""
    return (
        f"strategy={strategy}: {_where(task, 'training_step')} returned None, which skips a batch; "
        "if that is not meant, return the loss"
    )


def report_no_optimizer(task: LightningModule) -> None:
    """Say that a task trains nothing."""
    name = "configure_optimizers"
    is_own = is_overridden(name, task)
    what = f"{_where(task, name)} returned None" if is_own else f"{_name(task)} has no {name}"
    say(f"{what}: nothing is trained; return an optimizer, such as torch.optim.Adam(...)")


def _name(task: LightningModule) -> str:
    return type(task).__name__


def _where(task: LightningModule, method: str) -> str:
    code = _code(task, method)
    at = "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return f"{method} of {_name(task)}{at}"


def _code(task: LightningModule, method: str) -> CodeType | None:
    function = inspect.unwrap(getattr(type(task), method))
    return getattr(function, "__code__", None)


def _returns_nothing(code: CodeType) -> bool:
    """Whether no `return` of a function has a value."""
    instructions = list(dis.get_instructions(code))
    returned = [each for each in instructions if each.opname == "RETURN_CONST"]
    returned += [value for value, each in pairwise(instructions) if each.opname == "RETURN_VALUE"]
    is_none = [each.opname in ("LOAD_CONST", "RETURN_CONST") for each in returned]
    return all(is_none) and all(each.argval is None for each in returned)
