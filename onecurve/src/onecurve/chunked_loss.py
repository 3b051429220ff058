"""Cross entropy over a large vocabulary, without all logits in memory at once.

Exact. The `linear_cross_entropy` of PyTorch 2.15 can do so, too, but older ones cannot; and it
computes gradients in the forward pass, for which torch.compile falls back.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunks: int,
    bias: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The loss of each row of ``linear(hidden, weight, bias)``, chunk by chunk.

    The logits of one chunk are in memory at a time, and computed again in the backward pass: one
    matrix product more. Call it in the layer that holds the weight, whose outputs are then losses.

    Args:
        hidden: Inputs of the last linear layer (..., width).
        weight: Its weight (classes, width).
        targets: Class indices (...).
        chunks: How many chunks the rows are split into.
        bias: Its bias (classes,).
        options: Of `torch.nn.functional.cross_entropy`, but for `reduction`.

    Returns:
        A loss for each row (...); their mean is the mean cross entropy.
    """

    def losses(rows: Tensor, classes: Tensor) -> Tensor:
        logits = F.linear(rows, weight, bias)
        return F.cross_entropy(logits, classes, reduction="none", **options)

    parts = zip(hidden.flatten(0, -2).chunk(chunks), targets.flatten().chunk(chunks), strict=True)
    found = [checkpoint(losses, *part, use_reentrant=False) for part in parts]
    return torch.cat(found).view(targets.shape)
