"""Weights losses by something else than samples, such as tokens.

A task's ``weight(targets)`` returns what its loss is a mean over: the number of tokens that are not
padding, or the sum of class weights. If the batch is not a pair and the task has no `prepare`, the
call is ``weight(batch)``. The weights of the parts of a batch must add up to that of the batch.

The loss of many Hugging Face models is known without it: computed from the batch's ``labels``, it
is a mean over those that are not -100. Ranks are then weighted by their labels automatically. What
is logged for an epoch remains a mean over samples, as in one process.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ..compat.of_torch import tensor_leaves

IGNORED = -100
"""The label that losses in transformers ignore."""
MEANS_OVER_LABELS = re.compile("For(MaskedLM|TokenClassification|ConditionalGeneration)$")
MEANS_OVER_NEXT_LABELS = re.compile("(ForCausalLM|LMHeadModel)$")


def weighs(module: LightningModule) -> bool:
    """Whether a task has a method `weight`."""
    return callable(getattr(module, "weight", None))


def weight_of(module: LightningModule, targets: Any) -> Tensor | None:
    """The task's `weight` of targets or of a batch, in float64; None without such a method."""
    if not weighs(module):
        return None
    return torch.as_tensor(module.weight(targets)).detach().double()  # type: ignore[operator]


def mean_over_labels(module: LightningModule) -> tuple[str, bool] | None:
    """Find the Hugging Face model whose loss is known to be a mean over labels.

    Returns:
        The name of its class, and whether the first label of each sequence is in the mean. None
        unless exactly one model of the task is known to have such a loss, or if the task has
        `weight` or `prepare`.
    """
    if weighs(module) or callable(getattr(module, "prepare", None)):
        return None
    names = [
        type(part).__name__
        for part in module.modules()
        if any(kind.__name__ == "PreTrainedModel" for kind in type(part).__mro__)
    ]
    found = [name for name in names if MEANS_OVER_LABELS.search(name) or _predicts_next(name)]
    return (found[0], not _predicts_next(found[0])) if len(found) == 1 else None


def labels_in(batch: Any, with_first: bool) -> int | None:
    """How many labels of a batch count in a mean over labels; None if it has no label sequences."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim < 2:
        return None
    counted = labels if with_first else labels[..., 1:]
    return int((counted != IGNORED).sum())


def _predicts_next(name: str) -> bool:
    return MEANS_OVER_NEXT_LABELS.search(name) is not None


def no_loss(outputs: Any, targets: Any) -> Tensor:
    """Zero, whose backward pass gives every parameter a gradient of zero."""
    return torch.stack([leaf.sum() * 0.0 for leaf in tensor_leaves(outputs)]).sum()
