"""What passes between sharded layers, and the rows of fused projections.

Also the forward pass of an nn.MultiheadAttention whose heads are shared by ranks.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn import functional as F

from ..collectives import redistribute


def entered(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """What sharded layers read: the same tensor, whose gradients are summed over the ranks."""
    return redistribute(tensor, mesh.get_group(), Replicate(), Replicate(), Partial())


def full_sum(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum over all ranks; differentiable."""
    return redistribute(tensor, mesh.get_group(), Partial(), Replicate())


def gathered(features: Tensor, mesh: DeviceMesh) -> Tensor:
    """The features of all ranks, concatenated; differentiable."""
    return redistribute(features, mesh.get_group(), Shard(-1), Replicate())


def own_rows(
    weight: Tensor, bias: Tensor | None, sections: Sequence[int], mesh: DeviceMesh
) -> tuple[Tensor, Tensor | None]:
    """Exchange rows of a fused projection, so that this rank has its part of each section of both.

    A fused projection is one Linear layer for queries, keys and values, or for gates and hidden
    units. Its rows form sections, `[q; k; v]`, and a rank uses a part of each. But the weight is
    sharded by rows like any other, so a rank holds rows that others use: ranks exchange rows before
    each use, and their gradients after it. That sends at most the weight divided by the number of
    ranks, and the rest of the library can gather, shard and save the weight as usual. (DTensor's
    interleaved shards would need no exchange, but distributed checkpoints do not support them.)

    Args:
        weight: The rows that this rank holds, (rows / ranks, features).
        bias: The bias of these rows.
        sections: The number of rows of each section; each is a multiple of the number of ranks.
        mesh: The ranks, on a one-dimensional mesh.
    """
    # The bias becomes one more column, so that one message is enough.
    shard = weight if bias is None else torch.cat([weight, bias.unsqueeze(1)], 1)
    rank, ranks = mesh.get_local_rank(), range(mesh.size())
    sent = [[*_overlaps(sections, mesh.size(), rank, user)] for user in ranks]
    got = [[*_overlaps(sections, mesh.size(), holder, rank)] for holder in ranks]
    rows: Tensor = _Exchange.apply(
        mesh.get_group(),
        torch.cat([shard[start:stop] for overlaps in sent for start, stop in overlaps]),
        [sum(stop - start for start, stop in overlaps) for overlaps in got],
        [sum(stop - start for start, stop in overlaps) for overlaps in sent],
    )
    return (rows, None) if bias is None else (rows[:, :-1], rows[:, -1])


def _overlaps(
    sections: Sequence[int], size: int, holder: int, user: int
) -> Iterator[tuple[int, int]]:
    """The row ranges that rank `user` uses, within the rows that rank `holder` holds."""
    rows = sum(sections) // size
    first = -holder * rows
    for length in sections:
        used = length // size
        start, stop = max(first + user * used, 0), min(first + (user + 1) * used, rows)
        if start < stop:
            yield start, stop
        first += length


class _Exchange(torch.autograd.Function):
    """Differentiable all-to-all of rows; PyTorch deprecates its own public one."""

    @staticmethod
    def forward(ctx: Any, group: Any, sent: Tensor, got: list[int], given: list[int]) -> Tensor:
        ctx.arguments = group, given, got
        received = sent.new_empty((sum(got), *sent.shape[1:]))
        dist.all_to_all_single(received, sent, got, given, group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        group, got, given = ctx.arguments
        returned = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        dist.all_to_all_single(returned, gradient.contiguous(), got, given, group)
        return None, returned, None, None


def heads_forward(
    layer: nn.MultiheadAttention,
    mesh: DeviceMesh,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Replaces ``layer.forward``: takes and returns (N, T, width) or (T, N, width), and weights."""
    different = {id(given): given for given in (query, key, value)}
    read = {name: entered(given, mesh) for name, given in different.items()}
    inputs = [read[id(given)] for given in (query, key, value)]
    batched = inputs[0].ndim == 3
    if not batched:
        inputs = [tensor.unsqueeze(0) for tensor in inputs]
    elif not layer.batch_first:
        inputs = [tensor.transpose(0, 1) for tensor in inputs]
    shards = local(layer.in_proj_weight), local(layer.in_proj_bias)
    weight, bias = own_rows(*shards, [layer.embed_dim] * 3, mesh)
    biases = [None] * 3 if bias is None else bias.chunk(3)
    q, k, v = (
        F.linear(*of).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)  # type: ignore[no-untyped-call]
        for of in zip(inputs, weight.chunk(3), biases, strict=True)
    )
    mask = _mask(mesh, q, attn_mask, key_padding_mask)
    dropout = layer.dropout if layer.training else 0.0
    seen_by = None
    if need_weights:
        scores = q @ k.mT / math.sqrt(layer.head_dim)
        seen_by = (scores if mask is None else scores + mask).softmax(-1)
        seen_by = F.dropout(seen_by, dropout)
        seen = seen_by @ v
    else:
        # With is_causal the mask is redundant.
        causal = is_causal and key_padding_mask is None
        mask = None if causal else mask
        seen = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
    out = layer.out_proj
    outputs = F.linear(seen.transpose(1, 2).flatten(2), local(out.weight), summand(mesh, out.bias))
    if not batched:
        outputs = outputs.squeeze(0)
    elif not layer.batch_first:
        outputs = outputs.transpose(0, 1)
    outputs = full_sum(outputs, mesh)
    if seen_by is None:
        return outputs, None
    if not average_attn_weights:
        raise NotImplementedError("attention weights per head, when ranks share the heads")
    mean = full_sum(seen_by.sum(1) / layer.num_heads, mesh)
    return outputs, mean if batched else mean.squeeze(0)


def local(parameter: Any) -> Any:
    """This rank's shard of a parameter, or None; differentiable."""
    if parameter is None:
        return None
    if parameter.device_mesh.ndim > 1:
        # FSDP2 has not gathered it for a call, and would not average its gradients over replicas.
        raise RuntimeError("a DTensor is used outside of the module that holds it")
    return parameter.to_local()


def summand(mesh: DeviceMesh, bias: Tensor | None) -> Tensor | None:
    """The addend by which the sum over the ranks contains a full bias exactly once.

    Rank 0 adds the bias, the others add zero. The bias gets the gradient of the sum on every rank.
    """
    if bias is None or mesh.get_local_rank() == 0:
        return bias
    return bias - bias.detach()


def _mask(
    mesh: DeviceMesh, q: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
) -> Tensor | None:
    """Both masks as one additive mask for the scores (N, heads, T, S) of this rank's heads."""
    masks = []
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            size, rank = mesh.size(), mesh.get_local_rank()
            of_heads = attn_mask.unflatten(0, (-1, size * q.shape[1]))  # type: ignore[no-untyped-call]
            attn_mask = of_heads.chunk(size, 1)[rank]
        masks.append(attn_mask)
    if key_padding_mask is not None:
        masks.append(key_padding_mask.view(-1, 1, 1, key_padding_mask.shape[-1]))
    added = [
        torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -torch.inf)
        if mask.dtype == torch.bool
        else mask
        for mask in masks
    ]
    return sum(added[1:], added[0]) if added else None
