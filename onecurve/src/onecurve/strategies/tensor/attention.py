"""nn.MultiheadAttention, of which each rank computes some heads.

Its weight of queries, keys and values is stacked, `[q; k; v]`, and cut by rows like any other, so
that a rank holds rows of other heads than its own: ranks exchange them before each use, and their
gradients after it. That sends at most 3 width² numbers divided by the ranks, and the weight is one
that every other part of the library can gather, cut and save.
"""

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from .collectives import Group, Region, permuted, share, summed


def heads_forward(
    layer: nn.MultiheadAttention,
    region: Region,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As ``layer.forward``: (N, T, width), or (T, N, width), to the same and the weights."""
    group = region.group
    # Once for what is the same, as in self-attention.
    given = {id(tensor): tensor for tensor in (query, key, value)}
    entered = dict(zip(given, region.enter_together(*given.values()), strict=True))
    inputs = [entered[id(tensor)] for tensor in (query, key, value)]
    batched = inputs[0].ndim == 3
    if not batched:
        inputs = [tensor.unsqueeze(0) for tensor in inputs]
    elif not layer.batch_first:
        inputs = [tensor.transpose(0, 1) for tensor in inputs]
    q, k, v = (
        F.linear(tensor, *of).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)  # type: ignore[no-untyped-call]
        for tensor, of in zip(inputs, own_heads(group, layer), strict=True)
    )
    mask = _mask(group, q, attn_mask, key_padding_mask)
    dropout = layer.dropout if layer.training else 0.0
    if need_weights:
        scores = q @ k.mT / math.sqrt(layer.head_dim)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        weights = F.dropout(weights, dropout)
        seen = weights @ v
    else:
        # A mask that is called causal may be left out.
        causal = is_causal and key_padding_mask is None
        mask = None if causal else mask
        seen = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
    out = layer.out_proj
    out_bias = None if out.bias is None else share(group, out.bias)
    made = F.linear(seen.transpose(1, 2).flatten(2), local(out.weight), out_bias)
    if not batched:
        made = made.squeeze(0)
    elif not layer.batch_first:
        made = made.transpose(0, 1)
    made = region.leave(made)
    if not need_weights:
        return made, None
    if not average_attn_weights:
        raise NotImplementedError("the weights of each head, which ranks share")
    mean = summed(group, weights.sum(1) / layer.num_heads)
    return made, mean if batched else mean.squeeze(0)


def own_heads(group: Group, layer: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias by which this rank's heads make queries, keys and values.

    Of the 3 width rows a rank holds as many as any other, in order, and gets those of its heads.
    """
    held = local(layer.in_proj_weight)
    if layer.in_proj_bias is not None:
        # As one more column, so that one message has all.
        held = torch.cat([held, local(layer.in_proj_bias).unsqueeze(1)], 1)
    size = group.size
    # Of 3 * size blocks, rank r holds 3r to 3r + 2; it wants r, size + r, 2 size + r.
    block = len(held) // 3
    sent, got = [0] * size, [0] * size
    order = sorted(range(3), key=lambda number: (3 * group.rank + number) % size)
    for number in order:
        sent[(3 * group.rank + number) % size] += block
    wanted = [part * size + group.rank for part in range(3)]
    for number in wanted:
        got[number // 3] += block
    parts = held.split(block)  # type: ignore[no-untyped-call]
    rows_of_heads = permuted(group, torch.cat([parts[number] for number in order]), sent, got)
    if layer.in_proj_bias is None:
        return [(rows, None) for rows in rows_of_heads.chunk(3)]
    return [(rows[:, :-1], rows[:, -1]) for rows in rows_of_heads.chunk(3)]


def _mask(
    group: Group, q: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
) -> Tensor | None:
    """Both masks as numbers that are added to scores (N, heads, T, S) of this rank's heads."""
    masks = []
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            heads = q.shape[1] * group.size
            attn_mask = group.piece(attn_mask.view(-1, heads, *attn_mask.shape[1:]), 1)
        masks.append(attn_mask)
    if key_padding_mask is not None:
        masks.append(key_padding_mask.view(-1, 1, 1, key_padding_mask.shape[-1]))
    added = [
        torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -torch.inf)
        if mask.dtype == torch.bool
        else mask
        for mask in masks
    ]
    if len(added) == 2:
        return added[0] + added[1]
    return added[0] if added else None


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a parameter, through which gradients pass."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
