"""What methods of a task return: what cannot train is one line, which names method and file."""

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer

from ..compat.of_lightning import have_no_optimizer
from ..errors import UserError, in_short, say


class Outputs:
    """Checks what `training_step` returns in automatic optimization."""

    def __init__(self) -> None:
        self._reported_none = False

    def check(self, task: LightningModule, output: Any, strategy: str) -> None:
        """Reject what is no loss; None skips a batch in one process, and is reported once."""
        if not task.automatic_optimization:
            return
        _reject_output(task, output)
        if output is not None or self._reported_none:
            return
        if task.trainer.world_size > 1:
            raise UserError(
                f"strategy={strategy}: training_step of {_name(task)} returned None, which skips a "
                "batch in one process alone; return the loss times 0, or use strategy=single"
            )
        self._reported_none = True
        say(
            f"strategy={strategy}: {_where(task, 'training_step')} returned None, which skips a "
            "batch; if that is not meant, return the loss"
        )


def reject_without_gradient(task: LightningModule, loss: Tensor) -> None:
    """Reject a loss that no backward pass can begin with."""
    if loss.requires_grad or is_overridden("backward", task):
        return
    raise UserError(
        f"{_where(task, 'training_step')} returned a loss without a gradient; leave out .detach() "
        "and torch.no_grad(), and compute it from parameters that are not frozen"
    )


def report_no_optimizer(task: LightningModule, optimizers: Iterable[Optimizer]) -> None:
    """Say so if a task trains nothing."""
    if not have_no_optimizer(optimizers):
        return
    name = "configure_optimizers"
    is_own = is_overridden(name, task)
    what = f"{_where(task, name)} returned None" if is_own else f"{_name(task)} has no {name}"
    say(f"{what}: nothing is trained; return an optimizer, such as torch.optim.Adam(...)")


def _reject_output(task: LightningModule, output: Any) -> None:
    loss = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return
    step = _where(task, "training_step")
    if output is None:
        code = _code(task, "training_step")
        if code is not None and _returns_nothing(code):
            raise UserError(f"{step} returns nothing; end it with `return loss`")
    elif loss is None:
        keys = ", ".join(map(str, output)) or "none"
        raise UserError(f"{step} returned a dict without a loss (keys: {keys}); add 'loss'")
    elif isinstance(loss, Tensor):
        raise UserError(
            f"{step} returned a tensor of shape {tuple(loss.shape)}, and a loss is one number; "
            "return its .mean()"
        )
    else:
        given = f"{type(loss).__name__} ({in_short(loss, 30)})"
        raise UserError(f"{step} returned a {given}; return the loss as a tensor, without .item()")


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
    """Whether its source has no `return` with a value, not even in a comment."""
    try:
        return re.search(r"\breturn\b[ \t]*[^\s#]", inspect.getsource(code)) is None
    except OSError:
        return False  # its source is not there
