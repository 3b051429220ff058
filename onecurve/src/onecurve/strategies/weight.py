"""How much counts in some targets, where a task says that it is not the number of samples.

A task's ``weight(targets)`` is a number: the tokens that are no padding, the sum of the weights of
classes. `loss` is then the mean over that, and a rank's loss counts by it. What counts in the parts
of targets must add up to what counts in all of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .logging_together import log_replaced
from .redirect import replaced


def weighs(module: LightningModule) -> bool:
    """Whether a task says how much counts."""
    return callable(getattr(module, "weight", None))


def weight_of(module: LightningModule, targets: Any) -> Tensor | None:
    """What counts in targets, in float64; None if the task has no method `weight`."""
    if not weighs(module):
        return None
    return torch.as_tensor(module.weight(targets)).detach().double()  # type: ignore[operator]


@contextmanager
def counting_by(module: LightningModule, weight: Tensor | None) -> Iterator[None]:
    """Let what a step logs count by a weight, unless it says by what; and nothing be lost on zero.

    A mean over nothing is none: in a share of padding alone, `loss` is a zero instead.
    """
    if weight is None:
        yield
        return
    loss = nullcontext() if weight else replaced(module, "loss", no_loss)
    with loss, log_replaced(module, _by(module.log, weight)):
        yield


def no_loss(outputs: Any, targets: Any) -> Tensor:
    """Zero, through whose backward pass every parameter gets a gradient of zero."""
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return torch.stack([leaf.sum() * 0.0 for leaf in leaves]).sum()


def _by(log: Callable[..., None], weight: Tensor) -> Callable[..., None]:
    def counted(name: str, value: Any, *args: Any, **options: Any) -> None:
        if options.get("batch_size") is None:
            options["batch_size"] = weight
        log(name, value, *args, **options)

    return counted
