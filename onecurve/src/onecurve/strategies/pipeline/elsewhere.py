"""Parameters that another rank holds, and hooks of a task that ask for their gradients.

A rank has the gradients of its own layers. A hook that takes a norm over "all" of them, as
`torch.nn.utils.clip_grad_norm_` does in an overridden `configure_gradient_clipping` or Lightning's
`grad_norm` in `on_before_optimizer_step`, would get another number on every rank; so whoever asks
for a gradient that lies elsewhere hears of it, before the first step.

Not noticed: a callback that goes through gradients without one of these functions. It may as well
do something to each of them alone, which is right; see `ForCallbacks` for what it can ask.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from ...errors import UserError

HOOKS = (
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "on_train_batch_end",
    "on_before_zero_grad",
)
NORMS = {"grad_norm", "clip_grad_norm_", "get_total_norm"}


class Elsewhere(nn.Parameter):
    """A parameter without memory and without a gradient, because another rank has them."""

    asked_by: str | None = None
    """The hook that runs now, if its answer depends on all gradients."""

    @property
    def grad(self) -> Tensor | None:
        """None, unless a hook asks.

        Raises:
            UserError: Then.
        """
        if Elsewhere.asked_by is not None:
            raise UserError(
                f"strategy=pipeline: {Elsewhere.asked_by} asks for a gradient that another rank "
                "has; use trainer.gradient_clip_val, self.clip_gradients(...) or "
                "self.trainer.strategy.gradient_norm(), which know all of them, or strategy=ddp"
            )
        return None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        assert value is None, "a gradient of what has no memory"


@contextmanager
def asking(hook: str | None) -> Iterator[None]:
    """Let a hook ask for gradients meanwhile; or, for None, what knows where they are."""
    before, Elsewhere.asked_by = Elsewhere.asked_by, hook
    try:
        yield
    finally:
        Elsewhere.asked_by = before


def watch_hooks(trainer: Trainer) -> None:
    """Notice which hooks of the task, and of callbacks that take norms, ask for gradients."""
    module = trainer.lightning_module
    _watch(module, "clip_gradients", None)
    for name in HOOKS:
        if getattr(type(module), name) is not getattr(LightningModule, name):
            _watch(module, name, f"{type(module).__name__}.{name}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if _names(type(callback)) & NORMS:
            for name in HOOKS:
                if callable(getattr(callback, name, None)):
                    _watch(callback, name, f"{type(callback).__name__}.{name}")


def _watch(owner: LightningModule | Callback, name: str, hook: str | None) -> None:
    inner: Callable[..., Any] = getattr(owner, name)
    if hasattr(inner, "is_watched"):
        return

    @wraps(inner)
    def watched(*args: Any, **options: Any) -> Any:
        with asking(hook):
            return inner(*args, **options)

    watched.is_watched = True  # type: ignore[attr-defined]
    setattr(owner, name, watched)


def _names(kind: type) -> set[str]:
    """What the methods of a class speak of."""
    codes = [
        getattr(part, "__code__", None) for each in kind.__mro__ for part in vars(each).values()
    ]
    return {name for code in codes if code is not None for name in code.co_names}
