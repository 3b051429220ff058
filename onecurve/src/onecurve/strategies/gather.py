"""Rows of all ranks, with a gradient for those of each."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The rows of all ranks of a group, rank by rank. All ranks call this, in the same order.

    The gradient of a row is the sum of those that the ranks have for it.

    Args:
        tensor: This rank's rows (n, ...), as many as every other rank has.
        group: The ranks; None stands for all.
    """
    gathered: Tensor = _Gather.apply(tensor, group)
    return gathered


def gather_uneven(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """As `gather`, of ranks that may have different numbers of rows."""
    counts = torch.zeros(dist.get_world_size(group), dtype=torch.long, device=tensor.device)
    counts[dist.get_rank(group)] = len(tensor)
    dist.all_reduce(counts, group=group)
    sizes = counts.tolist()
    missing = tensor.new_zeros(max(sizes) - len(tensor), *tensor.shape[1:])
    parts = gather(torch.cat([tensor, missing]), group).chunk(len(sizes))
    return torch.cat([rows[:size] for rows, size in zip(parts, sizes, strict=True)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, piece: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        whole = piece.new_empty(len(piece) * dist.get_world_size(group), *piece.shape[1:])
        dist.all_gather_into_tensor(whole, piece.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        return _Scatter.apply(incoming[0], ctx.group), None


class _Scatter(torch.autograd.Function):
    """The sum over the ranks, of which each keeps its piece: what a gathering is differentiated to.

    A function of its own, so that gradients of gradients are right, too.
    """

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        piece = whole.new_empty(len(whole) // dist.get_world_size(group), *whole.shape[1:])
        dist.reduce_scatter_tensor(piece, whole.contiguous(), group=group)
        return piece

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(incoming[0], ctx.group), None
