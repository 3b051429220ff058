"""How much counts in some targets, where a task says that it is not the number of samples.

A task's ``weight(targets)`` is a number: the tokens that are no padding, the sum of the weights of
classes. Of a batch that is no pair, in a task without `prepare`, it is ``weight(batch)``.
`loss` is then the mean over that, and a rank's loss counts by it. What counts in the parts
of targets must add up to what counts in all of them.

Of a network of transformers that makes its own loss of a batch's ``labels``, that loss is known: a
mean over those that are not -100. There it counts so by itself, among ranks; what is logged for an
epoch stays a mean over samples, as in one process.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ..compat.of_torch import tensor_leaves
from .redirect import replaced

IGNORED = -100
"""A label that no loss of transformers counts."""
MEANS_OVER_LABELS = re.compile("For(MaskedLM|TokenClassification|ConditionalGeneration)$")
MEANS_OVER_NEXT_LABELS = re.compile("(ForCausalLM|LMHeadModel)$")


def weighs(module: LightningModule) -> bool:
    """Whether a task says how much counts."""
    return callable(getattr(module, "weight", None))


def weight_of(module: LightningModule, targets: Any) -> Tensor | None:
    """What counts in targets, or in a batch, in float64; None without a method `weight`."""
    if not weighs(module):
        return None
    return torch.as_tensor(module.weight(targets)).detach().double()  # type: ignore[operator]


def mean_over_labels(module: LightningModule) -> tuple[str, bool] | None:
    """Whose loss is a mean over labels, and whether the first label of each sequence is in it.

    Returns:
        The name of the class; None where no network of the task, or several, are known to make such
        a loss, or the task says itself what counts.
    """
    if weighs(module) or callable(getattr(module, "prepare", None)):
        return None
    names = [
        type(part).__name__.removeprefix("FSDP")  # which FSDP2 has put before it
        for part in module.modules()
        if any(kind.__name__ == "PreTrainedModel" for kind in type(part).__mro__)
    ]
    found = [name for name in names if MEANS_OVER_LABELS.search(name) or _predicts_next(name)]
    return (found[0], not _predicts_next(found[0])) if len(found) == 1 else None


def labels_in(batch: Any, with_first: bool) -> int | None:
    """How many labels of a batch are in a mean over them; None if it has none for each position.

    Args:
        batch: What a step gets.
        with_first: Whether the first of each sequence is in it.
    """
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim < 2:
        return None
    counted = labels if with_first else labels[..., 1:]
    return int((counted != IGNORED).sum())


def _predicts_next(name: str) -> bool:
    return MEANS_OVER_NEXT_LABELS.search(name) is not None


def loss_of_nothing(module: LightningModule) -> AbstractContextManager[None]:
    """Let the loss be zero where nothing counts, as in a share of padding alone: no mean is."""
    return replaced(module, "loss", no_loss)


def no_loss(outputs: Any, targets: Any) -> Tensor:
    """Zero, through whose backward pass every parameter gets a gradient of zero."""
    return torch.stack([leaf.sum() * 0.0 for leaf in tensor_leaves(outputs)]).sum()
