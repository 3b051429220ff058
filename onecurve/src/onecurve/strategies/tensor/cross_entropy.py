"""The cross entropy of logits that are cut between ranks: what passes is three numbers a row."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .collectives import Group


def cross_entropy(
    group: Group,
    piece: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """As `torch.nn.functional.cross_entropy`, on each rank.

    It computes in float32 at least, as PyTorch's does under autocast, and within a kernel.

    Args:
        group: The ranks.
        piece: Logits (..., entries of this rank).
        target: Entries (...), of all ranks.
        ignore_index: The target that does not count.
        reduction: "mean" over what counts, "sum" or "none".
        label_smoothing: Share of the target that is spread over all entries.
    """
    autocast = torch.is_autocast_enabled(piece.device.type)
    dtype = torch.promote_types(piece.dtype, torch.float32)
    counts = target != ignore_index
    losses: Tensor = _Rows.apply(
        group, piece.to(dtype), target.masked_fill(~counts, 0), label_smoothing
    )
    losses = losses.masked_fill(~counts, 0).to(dtype if autocast else piece.dtype)
    if reduction == "none":
        return losses
    return losses.sum() / counts.sum() if reduction == "mean" else losses.sum()


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, piece: Tensor, target: Tensor, smooth: float) -> Tensor:
        entries = piece.shape[-1]
        own = target - group.rank * entries
        elsewhere = (own < 0) | (own >= entries)
        own = own.masked_fill(elsewhere, 0).unsqueeze(-1)
        largest = group.sum(piece.amax(-1, keepdim=True), dist.ReduceOp.MAX)
        shifted = piece - largest
        chosen = shifted.gather(-1, own).squeeze(-1).masked_fill(elsewhere, 0)
        likely = shifted.exp()
        sums = [likely.sum(-1), chosen, *([shifted.sum(-1)] if smooth else [])]
        total, chosen, *spread = group.sum(torch.stack(sums))
        losses: Tensor = total.log() - (1 - smooth) * chosen
        if smooth:
            losses = losses - smooth / (entries * group.size) * spread[0]
        ctx.save_for_backward(likely.div_(total.unsqueeze(-1)), own, elsewhere)
        ctx.smooth, ctx.entries = smooth, entries * group.size
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        likely, own, elsewhere = ctx.saved_tensors
        chosen = (ctx.smooth - 1) * (~elsewhere).to(likely.dtype).unsqueeze(-1)
        made = likely - ctx.smooth / ctx.entries if ctx.smooth else likely.clone()
        made.scatter_add_(-1, own, chosen)
        return None, made * gradient.unsqueeze(-1), None, None
