"""Rows of all ranks, with a gradient for those of each."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_rows(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The rows of all ranks of a group, rank by rank; they may have different numbers of them.

    The gradient of a row is the sum of those that the ranks have for it.

    Args:
        tensor: This rank's rows (n, ...).
        group: The ranks; None stands for all.
    """
    gathered: Tensor = _AllRows.apply(tensor, group)
    return gathered


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        counts = torch.zeros(dist.get_world_size(group), dtype=torch.long, device=tensor.device)
        counts[dist.get_rank(group)] = len(tensor)
        dist.all_reduce(counts, group=group)
        sizes = counts.tolist()
        # Collectives want tensors of one shape.
        padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        start = sum(sizes[: dist.get_rank(group)])
        ctx.group, ctx.own = group, slice(start, start + len(tensor))
        return torch.cat([rows[:size] for rows, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        total = incoming[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.own], None
