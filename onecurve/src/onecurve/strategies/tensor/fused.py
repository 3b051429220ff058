"""Fused projections: one Linear layer for queries, keys and values, or for gates and hidden units.

The rows form sections, `[q; k; v]`, and a rank uses a part of each. But the weight is sharded by
rows like any other, so a rank holds rows that others use: ranks exchange rows before each use, and
their gradients after it. That sends at most the weight divided by the number of ranks, and the rest
of the library can gather, shard and save the weight as usual. (DTensor's interleaved shards would
need no exchange, but distributed checkpoints do not support them.)
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


class Rows(NamedTuple):
    """Weight and bias of a Linear layer, or some rows of them."""

    weight: Tensor
    bias: Tensor | None


def own_rows(
    weight: Tensor, bias: Tensor | None, sections: Sequence[int], mesh: DeviceMesh
) -> Rows:
    """Exchange rows, so that this rank has its part of each section.

    Args:
        weight: The rows that this rank holds, (rows / ranks, features).
        bias: The bias of these rows.
        sections: The number of rows of each section; each is a multiple of the number of ranks.
        mesh: The ranks, on a one-dimensional mesh.
    """
    # The bias becomes one more column, so that one message is enough.
    held = weight if bias is None else torch.cat([weight, bias.unsqueeze(1)], 1)
    rank, ranks = mesh.get_local_rank(), range(mesh.size())
    sent = [[*_overlaps(sections, mesh.size(), rank, user)] for user in ranks]
    got = [[*_overlaps(sections, mesh.size(), holder, rank)] for holder in ranks]
    rows: Tensor = _Exchange.apply(
        mesh.get_group(),
        torch.cat([held[start:stop] for overlaps in sent for start, stop in overlaps]),
        [sum(stop - start for start, stop in overlaps) for overlaps in got],
        [sum(stop - start for start, stop in overlaps) for overlaps in sent],
    )
    return Rows(rows, None) if bias is None else Rows(rows[:, :-1], rows[:, -1])


def _overlaps(
    sections: Sequence[int], size: int, holder: int, user: int
) -> Iterator[tuple[int, int]]:
    """The row ranges that rank `user` uses, within the rows that rank `holder` holds."""
    held = sum(sections) // size
    first = -holder * held
    for length in sections:
        used = length // size
        start, stop = max(first + user * used, 0), min(first + (user + 1) * used, held)
        if start < stop:
            yield start, stop
        first += length


class _Exchange(torch.autograd.Function):
    """Differentiable all-to-all of rows; PyTorch deprecates its own public one."""

    @staticmethod
    def forward(ctx: Any, group: Any, sent: Tensor, got: list[int], given: list[int]) -> Tensor:
        ctx.arguments = group, given, got
        made = sent.new_empty((sum(got), *sent.shape[1:]))
        dist.all_to_all_single(made, sent, got, given, group)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        group, got, given = ctx.arguments
        made = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        dist.all_to_all_single(made, gradient.contiguous(), got, given, group)
        return None, made, None, None
