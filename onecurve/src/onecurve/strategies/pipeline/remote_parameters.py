"""Parameters of other ranks' stages, and hooks of users that look at their gradients.

A rank has the gradients of its own layers. A hook that takes a norm over "all" of them, as
Lightning's `grad_norm` does in `on_before_optimizer_step`, would get another number on every rank.
(PyTorch's `clip_grad_norm_` does not: see `clip.py`.) So for the length of a hook the gradient of
a remote parameter is a tensor on the meta device: what changes each gradient alone works on it,
and what asks for its numbers cannot have them, and says so.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ...compat.of_lightning import results_of
from ...errors import UserError
from ..redirect import replaced

HOOKS = (
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "on_train_batch_end",
    "on_before_zero_grad",
)
# Callbacks of Lightning and of this library ask the strategy.
KNOWN = ("lightning", "onecurve")
# Where a user's code is not.
PACKAGES = {"torch", "lightning", "onecurve"}


class RemoteParameter(nn.Parameter):
    """A parameter without memory, because another rank holds it."""

    is_shown = False
    """Whether a user's hook runs now."""

    @property
    def grad(self) -> Tensor | None:
        """Nothing, but for a user's hook: what has a shape and no numbers."""
        shown = RemoteParameter.is_shown and self.requires_grad
        return torch.empty(self.shape, dtype=self.dtype, device="meta") if shown else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        assert value is None or value.is_meta, "a gradient of what has no memory"


@contextmanager
def shown(is_shown: bool) -> Iterator[None]:
    """Let gradients of remote parameters be seen meanwhile, or not."""
    before, RemoteParameter.is_shown = RemoteParameter.is_shown, is_shown
    try:
        yield
    finally:
        RemoteParameter.is_shown = before


def watch_hooks(trainer: Trainer, until: ExitStack) -> None:
    """Show gradients of remote parameters to the hooks of the task and of users' callbacks."""
    module = trainer.lightning_module
    _watch(module, "clip_gradients", False, until)
    for name in HOOKS:
        if getattr(type(module), name) is not getattr(LightningModule, name):
            _watch(module, name, True, until)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if type(callback).__module__.partition(".")[0] not in KNOWN:
            for name in HOOKS:
                if callable(getattr(callback, name, None)):
                    _watch(callback, name, True, until)


def _watch(owner: Any, name: str, shows: bool, until: ExitStack) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    @wraps(inner)
    def watched(*args: Any, **options: Any) -> Any:
        try:
            with shown(shows):
                return inner(*args, **options)
        # PyTorch has no class of its own for it.
        except (NotImplementedError, RuntimeError) as error:
            if not shows or "meta" not in str(error):
                raise
            raise UserError(
                f"strategy=pipeline: {type(owner).__name__}.{name} asks for a gradient that "
                "another rank has; use trainer.gradient_clip_val, self.clip_gradients(...) or "
                "self.trainer.strategy.gradient_norm(), which know all of them, or strategy=ddp"
            ) from None

    until.enter_context(replaced(owner, name, watched))


def explained(
    error: BaseException, module: LightningModule, network: str, strategy: str
) -> UserError | None:
    """What an error about layers that another rank has means in a task, in one line, if it is."""
    said, frames = str(error), extract_tb(error.__traceback__)
    copies = any(frame.name == "deepcopy" for frame in frames)
    if copies and "cannot pickle" in said and "ProcessGroup" in said:
        return UserError(
            f"strategy={strategy}: a module is copied whose layers are a pipeline; make the copy "
            "in __init__, or use strategy=ddp"
        )
    if not isinstance(error, NotImplementedError | RuntimeError) or "meta" not in said.lower():
        return None
    if any(frame.name == "_call_task" for frame in frames):
        return layers_used_outside_network(module, network)
    if "aten::equal" in said:
        line = (
            "parameters are compared (BaseFinetuning does it to unfreeze them), of which another "
            "rank has some; unfreeze by requires_grad alone, or use strategy=ddp"
        )
    else:
        at = [frame for frame in frames if not PACKAGES & {*Path(frame.filename).parts}][-1:]
        where = "".join(
            f" in {frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in at
        )
        line = (
            f"the numbers of a parameter are read{where} that another rank has; leave that to "
            "the layer that holds it, or use strategy=ddp"
        )
    return UserError(f"strategy={strategy}: {line}")


def layers_used_outside_network(module: LightningModule, network: str) -> UserError:
    """For a loss that depends on layers of other ranks, whatever PyTorch says of them."""
    results = results_of(module.trainer)
    if results is not None:
        results.clear()  # Lightning would move what was logged of it as it ends
    return UserError(
        f"strategy=pipeline: a step of {type(module).__name__} uses layers, or their parameters, "
        f"in another way than by calling {network}, and one rank holds them; use weight_decay of "
        "the optimizer for a penalty, or strategy=fsdp"
    )


def reject_lbfgs(optimizers: Iterable[Optimizer]) -> None:
    """Reject LBFGS, which takes all parameters as one vector."""
    if any(isinstance(optimizer, LBFGS) for optimizer in optimizers):
        raise UserError(
            "strategy=pipeline: LBFGS updates a weight by the gradients of all others, of which a "
            "rank has only those of its layers; use another optimizer, such as AdamW, or "
            "strategy=ddp"
        )


def drop_remote_state(optimizers: Iterable[Optimizer]) -> None:
    """Drop what some prepare for remote parameters before the first step, as Adagrad does."""
    for optimizer in optimizers:
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]
