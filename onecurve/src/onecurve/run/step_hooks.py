"""A callback is not called for those hooks of a batch that it leaves empty.

Lightning calls every hook of every callback, some fifty a step, of which most do nothing; a hook
that is None it passes over.
"""

from collections.abc import Iterable

from lightning.pytorch import Callback

BATCH_HOOKS = [
    *(
        f"on_{stage}_batch_{when}"
        for stage in ("train", "validation", "test", "predict")
        for when in ("start", "end")
    ),
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
]


def pass_over_empty(callbacks: Iterable[Callback]) -> None:
    """Hide the hooks of a batch that are Lightning's own empty ones."""
    for callback in callbacks:
        for name in BATCH_HOOKS:
            hook = getattr(callback, name)
            if getattr(hook, "__func__", None) is getattr(Callback, name):
                setattr(callback, name, None)
