"""Cross entropy over a large vocabulary without having all logits in memory.

Exact. PyTorch 2.15 has `linear_cross_entropy` for this, but older versions do not; and it
computes gradients in the forward pass, which torch.compile does not support.
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

    Only the logits of one chunk are in memory at a time; the backward pass recomputes them, which
    costs one more matrix product. Call this in the layer that holds the weight, so that its outputs
    are losses.

    Args:
        hidden: The inputs of the last linear layer (..., width).
        weight: Its weight (classes, width).
        targets: Class indices (...).
        chunks: The number of chunks into which the rows are split.
        bias: Its bias (classes,).
        options: Arguments of `torch.nn.functional.cross_entropy`, except `reduction`.

    Returns:
        A loss for each row (...); their mean is the mean cross entropy.
    """

    def losses(rows: Tensor, classes: Tensor) -> Tensor:
        logits = F.linear(rows, weight, bias)
        return F.cross_entropy(logits, classes, reduction="none", **options)

    parts = zip(hidden.flatten(0, -2).chunk(chunks), targets.flatten().chunk(chunks), strict=True)
    rows = [checkpoint(losses, *part, use_reentrant=False) for part in parts]
    return torch.cat(rows).view(targets.shape)
