"""Attention over sequences that are sharded over ranks: every query attends to all keys.

Each rank has the queries of its shard, and gathers keys and values; the backward pass sums their
gradients and scatters them. Exact. Not exact: dropout of attention weights, which each rank draws
for its own queries.
Memory: keys and values of the full sequence in each attention; queries and the rest per shard.
Communication: keys and values once in the forward pass, their gradients once in the backward pass.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...compat.of_torch import at_end_of_backward, is_in_backward
from ...compat.patching import replaced
from ...errors import UserError
from .axis import Axis, Current, Piece, current

_torch_attention: Any = F.scaled_dot_product_attention


@contextmanager
def working_on(piece: Piece | None) -> Iterator[None]:
    """Make `scaled_dot_product_attention` and `positions` see the full sequence in this context.

    This includes calls by nn.MultiheadAttention and the layers of nn.Transformer, in training and
    in evaluation. Causal means by position in the full sequence. A mask may cover the full
    sequence, or this rank's queries and all keys, or this rank's keys for every query. Queries or
    keys whose length is not that of a shard are left alone.

    Activation checkpointing recomputes layers outside of this context: see `until_backward_ends`.

    Args:
        piece: This rank's shard of each sequence. None restores plain attention within an outer
            context, for code that gets full sequences.
    """
    if Recomputing.stack is not None and not is_in_backward():
        Recomputing.stack.close()  # a failed backward pass has left it open
    fused = torch.backends.mha.get_fastpath_enabled()
    # The fast path of nn.TransformerEncoderLayer has its own attention.
    torch.backends.mha.set_fastpath_enabled(False)
    patched = replaced(F, "scaled_dot_product_attention", _attention)
    try:
        with replaced(Current, "piece", piece), patched:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


class Recomputing:
    """Open from the moment a gradient enters the sharded outputs until the backward pass ends."""

    stack: ExitStack | None = None


def until_backward_ends(piece: Piece) -> None:
    """Enter `working_on` for the rest of the backward pass from which this is called."""
    if Recomputing.stack is None:
        stack = ExitStack()
        stack.enter_context(working_on(piece))
        stack.enter_context(replaced(Recomputing, "stack", stack))
        at_end_of_backward(stack.close)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    piece = current()
    if piece is not None:
        if attn_mask is not None:
            attn_mask = _mask_of_own_queries(attn_mask, _length(query), _length(key), piece)
        if _length(key) == piece.length:
            key, value = _gather_keys_and_values(piece.axis, key, value)
        start = piece.start(_length(query))
        if is_causal and start:
            # No query of this rank sees keys after its shard.
            seen = min(start + _length(query), _length(key))
            key, value = key[..., :seen, :], value[..., :seen, :]
            everything = query.new_ones(_length(query), seen, dtype=torch.bool)
            attn_mask, is_causal = everything.tril(start), False
    outputs: Tensor = _torch_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return outputs


def _length(tensor: Tensor) -> int:
    return tensor.shape[-2]


def _gather_keys_and_values(axis: Axis, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Gather keys and values of the full sequence, if possible in one message."""
    if key.shape[:-1] != value.shape[:-1]:
        return axis.gather(key, -2), axis.gather(value, -2)
    both, width = axis.gather(torch.cat([key, value], -1), -2), key.shape[-1]
    return both[..., :width], both[..., width:]


def _mask_of_own_queries(mask: Tensor, queries: int, keys: int, piece: Piece) -> Tensor:
    """The rows of a mask for this rank's queries, with columns for all keys."""
    size = piece.axis.size
    rows = mask.shape[-2] if mask.ndim > 1 else 1
    all_queries = queries * size if queries == piece.length else queries
    if keys == piece.length:
        if mask.shape[-1] == keys and rows == 1:
            return piece.axis.gather(mask, -1)
        keys *= size
    if mask.shape[-1] not in (1, keys):
        raise UserError(
            f"strategy.context={size}: an attention mask has the shape {tuple(mask.shape)}, which "
            f"fits a shard of the sequence only; use is_causal=True, a mask of "
            f"{(all_queries, keys)}, or one of {(1, piece.length)} for the shard's keys alone, or "
            "strategy.context=1"
        )
    return mask.narrow(-2, piece.start(queries), queries) if rows == all_queries else mask
