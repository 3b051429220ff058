"""How much counts in some targets, where a task says that it is not the number of samples.

A task's ``weight(targets)`` is a number: the tokens that are no padding, the sum of the weights of
classes. `loss` is then the mean over that, and a rank's loss counts by it. What counts in the parts
of targets must add up to what counts in all of them.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .redirect import replaced


def weighs(module: LightningModule) -> bool:
    """Whether a task says how much counts."""
    return callable(getattr(module, "weight", None))


def weight_of(module: LightningModule, targets: Any) -> Tensor | None:
    """What counts in targets, in float64; None if the task has no method `weight`."""
    if not weighs(module):
        return None
    return torch.as_tensor(module.weight(targets)).detach().double()  # type: ignore[operator]


def loss_of_nothing(module: LightningModule) -> AbstractContextManager[None]:
    """Let the loss be zero where nothing counts, as in a share of padding alone: no mean is."""
    return replaced(module, "loss", no_loss)


def no_loss(outputs: Any, targets: Any) -> Tensor:
    """Zero, through whose backward pass every parameter gets a gradient of zero."""
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return torch.stack([leaf.sum() * 0.0 for leaf in leaves]).sum()
