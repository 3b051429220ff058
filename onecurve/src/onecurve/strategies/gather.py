"""Differentiable all-gather of rows."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate the rows of all ranks in rank order. All ranks of the group must call this.

    The gradient of a row is the sum of the gradients that the ranks compute for it.

    Args:
        tensor: This rank's rows (n, ...); every rank has the same number.
        group: The ranks; None for all.
    """
    gathered: Tensor = _Gather.apply(tensor, group)
    return gathered


def gather_uneven(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Like `gather`, for ranks with different numbers of rows."""
    counts = torch.zeros(dist.get_world_size(group), dtype=torch.long, device=tensor.device)
    counts[dist.get_rank(group)] = len(tensor)
    dist.all_reduce(counts, group=group)
    sizes = counts.tolist()
    missing = tensor.new_zeros(max(sizes) - len(tensor), *tensor.shape[1:])
    parts = gather(torch.cat([tensor, missing]), group).chunk(len(sizes))
    return torch.cat([rows[:size] for rows, size in zip(parts, sizes, strict=True)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        gathered = rows.new_empty(len(rows) * dist.get_world_size(group), *rows.shape[1:])
        dist.all_gather_into_tensor(gathered, rows.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        return _Scatter.apply(incoming[0], ctx.group), None


class _Scatter(torch.autograd.Function):
    """Reduce-scatter: the backward pass of `_Gather`.

    It is an autograd function too, so that second-order gradients are right.
    """

    @staticmethod
    def forward(ctx: Any, full: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        rows = full.new_empty(len(full) // dist.get_world_size(group), *full.shape[1:])
        dist.reduce_scatter_tensor(rows, full.contiguous(), group=group)
        return rows

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(incoming[0], ctx.group), None
