"""Attention over sequences that are cut between ranks: every query sees the keys of all pieces.

Each rank has its piece's queries, and gathers keys and values; the backward pass sums their
gradients and hands them back. Exact. Not exact: dropout of attention weights, which each rank draws
for its own queries.
Memory: keys and values of the whole sequence in each attention, queries and all else of the piece.
Sent: keys and values once in the forward pass, their gradients once in the backward pass.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...compat.of_torch import at_end_of_backward, is_in_backward
from ...errors import UserError
from ..redirect import replaced
from .axis import Axis, Piece, current, set_current

_as_torch_has_it: Any = F.scaled_dot_product_attention


@contextmanager
def working_on(piece: Piece | None) -> Iterator[None]:
    """Let `scaled_dot_product_attention` see the whole sequence meanwhile, and `positions` tell it.

    Also where nn.MultiheadAttention and the layers of nn.Transformer call it, in training and in
    evaluation. Causal means by position in the whole sequence. A mask may be that of the whole
    sequence, of this rank's queries and all keys, or of this rank's keys for all queries alike.
    Queries or keys of another length than a piece's are taken as they are.

    What a backward pass computes again (activation checkpointing) is computed alike, without this
    being entered, from where the gradient enters `sequence.whole`.

    Args:
        piece: What this rank has of each sequence. None, within, is for what is given whole
            sequences: attention as it always is.
    """
    if _recomputing is not None and not is_in_backward():
        _recomputing.close()  # a backward pass that failed has not ended it
    before, fused = current(), torch.backends.mha.get_fastpath_enabled()
    set_current(piece)
    # It fuses a whole layer, with an attention of its own.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with replaced(F, "scaled_dot_product_attention", _attention):
            yield
    finally:
        set_current(before)
        torch.backends.mha.set_fastpath_enabled(fused)


# Open from where a gradient enters the outputs of pieces until its backward pass has ended.
_recomputing: ExitStack | None = None


def until_backward_ends(piece: Piece) -> None:
    """As `working_on`, for the rest of the backward pass from which this is called."""
    global _recomputing
    if _recomputing is None:
        stack = ExitStack()
        stack.callback(_forget)
        stack.enter_context(working_on(piece))
        _recomputing = stack
        at_end_of_backward(stack.close)


def _forget() -> None:
    global _recomputing
    _recomputing = None


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
    """Stands for `scaled_dot_product_attention`."""
    piece = current()
    if piece is not None:
        if attn_mask is not None:
            attn_mask = _of_my_queries(attn_mask, _length(query), _length(key), piece)
        if _length(key) == piece.length:
            key, value = _of_all(piece.axis, key, value)
        start = piece.start(_length(query))
        if is_causal and start:
            # Nobody here sees what comes after this piece.
            seen = min(start + _length(query), _length(key))
            key, value = key[..., :seen, :], value[..., :seen, :]
            everything = query.new_ones(_length(query), seen, dtype=torch.bool)
            attn_mask, is_causal = everything.tril(start), False
    outputs: Tensor = _as_torch_has_it(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return outputs


def _length(tensor: Tensor) -> int:
    """Of queries, keys or values (..., T, E)."""
    return tensor.shape[-2]


def _of_all(axis: Axis, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the whole sequence, sent together."""
    if key.shape[:-1] != value.shape[:-1]:
        return axis.gather(key, -2), axis.gather(value, -2)
    both, width = axis.gather(torch.cat([key, value], -1), -2), key.shape[-1]
    return both[..., :width], both[..., width:]


def _of_my_queries(mask: Tensor, queries: int, keys: int, piece: Piece) -> Tensor:
    """The rows of a mask that are this rank's, for all keys."""
    size = piece.axis.size
    rows = mask.shape[-2] if mask.ndim > 1 else 1
    all_queries = queries * size if queries == piece.length else queries
    if keys == piece.length:
        if mask.shape[-1] == keys and rows == 1:
            return piece.axis.gather(mask, -1)
        keys *= size
    if mask.shape[-1] not in (1, keys):
        raise UserError(
            f"strategy.context={size}: an attention mask has the shape {tuple(mask.shape)}, made "
            f"of a piece of the sequence; use is_causal=True, a mask of {(all_queries, keys)}, or "
            f"one of {(1, piece.length)} for a piece's keys alone, or strategy.context=1"
        )
    return mask.narrow(-2, piece.start(queries), queries) if rows == all_queries else mask
