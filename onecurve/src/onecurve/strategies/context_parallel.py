"""Context parallelism as an axis of a mesh: every rank computes a shard of each sequence.

The network's inputs are sharded along dimension 1, and its outputs gathered. The rest of a task
(loss, metrics, logs) gets full sequences, the same on every rank of the axis. In a pipeline, the
stages shard the sequences instead.

Every query attends to all keys: each rank has the queries of its shard, and gathers keys and
values; the backward pass sums their gradients and scatters them. Exact, but for dropout of
attention weights, which each rank draws for its own queries.
Memory: keys and values of the full sequence in each attention; queries and the rest per shard.
Communication: keys and values once in the forward pass, their gradients once in the backward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from ..compat.of_torch import (
    at_end_of_backward,
    is_in_backward,
    tree_flatten,
    tree_map,
    tree_unflatten,
)
from ..compat.patches import replaced
from ..errors import UserError, say
from .collectives import gather, redistribute, with_hook
from .layout import Part
from .mesh.ranks import Ranks
from .mesh.sizes import Sizes
from .parallelism import Applied, Parallelism, Setting
from .step import StepContext

Tensors = tuple[Tensor, ...]


class Piece(NamedTuple):
    """This rank's shard of each sequence.

    A tensor of another length is not a shard: an input that is not sharded, or a parameter.
    """

    length: int
    rank: int
    """The number of the shard."""
    size: int
    """The number of shards, which all have the same length."""
    group: dist.ProcessGroup | None = None
    """The ranks that share each sequence, in the order of their shards."""

    def start(self, length: int) -> int:
        """The position at which a tensor of this length starts: 0 if it is not a shard."""
        return self.rank * length if length == self.length else 0


class Current:
    """Of this process, not of a thread: on GPUs a backward pass runs in other threads."""

    piece: Piece | None = None


def positions(tensor: Tensor) -> Tensor:
    """The positions of a tensor in its sequence; use this instead of counting from 0.

    With ``strategy.context`` above 1 a network gets a shard of each sequence, and this returns the
    shard's positions. Everywhere else, even without a strategy, they are 0 to T - 1. Use it for
    position embeddings, also rotary ones, and for masks that a network makes itself::

        vectors = self.tokens(text) + self.places(onecurve.positions(text))

    Args:
        tensor: Any tensor (N, T, ...) that the network gets or computes.

    Returns:
        Integers (T,) on the tensor's device.
    """
    length = tensor.shape[1]
    piece = Current.piece
    start = 0 if piece is None else piece.start(length)
    return torch.arange(start, start + length, device=tensor.device)


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
    if piece is Current.piece is None:
        yield
        return
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
    piece = Current.piece
    if piece is not None:
        if attn_mask is not None:
            attn_mask = _mask_of_own_queries(attn_mask, query.shape[-2], key.shape[-2], piece)
        if key.shape[-2] == piece.length:
            key, value = gather(key, piece.group, -2), gather(value, piece.group, -2)
        start = piece.start(query.shape[-2])
        if is_causal and start:
            # No query of this rank sees keys after its shard.
            seen = min(start + query.shape[-2], key.shape[-2])
            key, value = key[..., :seen, :], value[..., :seen, :]
            everything = query.new_ones(query.shape[-2], seen, dtype=torch.bool)
            attn_mask, is_causal = everything.tril(start), False
    outputs: Tensor = _torch_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return outputs


def _mask_of_own_queries(mask: Tensor, queries: int, keys: int, piece: Piece) -> Tensor:
    """The rows of a mask for this rank's queries, with columns for all keys."""
    size = piece.size
    rows = mask.shape[-2] if mask.ndim > 1 else 1
    all_queries = queries * size if queries == piece.length else queries
    if keys == piece.length:
        if mask.shape[-1] == keys and rows == 1:
            return gather(mask, piece.group, -1)
        keys *= size
    if mask.shape[-1] not in (1, keys):
        raise UserError(
            f"strategy.context={size}: an attention mask has the shape {tuple(mask.shape)}, which "
            f"fits a shard of the sequence only; use is_causal=True, a mask of "
            f"{(all_queries, keys)}, or one of {(1, piece.length)} for the shard's keys alone, or "
            "strategy.context=1"
        )
    return mask.narrow(-2, piece.start(queries), queries) if rows == all_queries else mask


class ContextParallel(Parallelism):
    """Replaces `forward`: it takes full sequences, and the network gets this rank's shard."""

    _is_used: bool = False

    def is_needed(self, sizes: Sizes) -> bool:
        return sizes.context > 1 and sizes.pipeline == 1

    def apply(self, task: LightningModule, parts: list[Part], setting: Setting) -> Applied:
        """Change nothing yet: `forward` is replaced for a fit or an evaluation."""
        ranks = setting.ranks
        return Applied(around=partial(self._run, ranks), connected=partial(self._connected, ranks))

    def _connected(self, ranks: Ranks, task: LightningModule) -> AbstractContextManager[Any]:
        shard_forward = task.forward

        def forward(*inputs: Any, **options: Any) -> Any:
            self._is_used = True
            return run_on_shards(shard_forward, inputs, ranks.context_group, **options)

        return replaced(task, "forward", forward)

    def _run(
        self, ranks: Ranks, task: LightningModule, context: StepContext, step: Callable[[], Any]
    ) -> Any:
        """Run a step, and report once if it does not call `self(inputs)`."""
        output = step()
        if not self._is_used and ranks.rank == 0:
            say(
                f"strategy.context={ranks.sizes.context}: {context.name} does not call "
                "self(inputs), so no sequence is sharded and every rank computes all of it"
            )
        self._is_used = True
        return output


def run_on_shards(
    forward: Callable[..., Any], inputs: Any, group: dist.ProcessGroup | None, **options: Any
) -> Any:
    """Run a network on this rank's shards of full sequences, and gather its outputs.

    Its arguments are tensors or trees of them; the group has the ranks in the order of the shards,
    and without one there are no others.
    """
    if group is None:
        return forward(*inputs, **options)
    leaves, structure = tree_flatten((tuple(inputs), options))
    sequences = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    piece = piece_of(sequences, dist.get_rank(group), dist.get_world_size(group), group)
    shards = iter(shard_sequences(sequences, piece))
    leaves = [next(shards) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = tree_unflatten(leaves, structure)
    with working_on(piece):
        outputs = forward(*args, **kwargs)
    return gather_outputs(outputs, piece)


def run_on_full(function: Callable[..., Any], outputs: Any, *arguments: Any) -> Any:
    """Within `run_on_shards`, call a function with the outputs for full sequences."""
    if Current.piece is not None:
        outputs = gather_outputs(outputs, Current.piece)
    with working_on(None):
        return function(outputs, *arguments)


def piece_of(
    inputs: Tensors, rank: int, size: int, group: dist.ProcessGroup | None = None
) -> Piece:
    """A rank's shard of a network's inputs, of which the first, (N, T, ...), has the length T."""
    asked = f"strategy.context={size}"
    if inputs[0].ndim < 2:
        raise UserError(
            f"{asked}: the input of the network has the shape {tuple(inputs[0].shape)}, so there "
            "is no dimension 1, the sequence, to shard; use strategy.context=1"
        )
    length = inputs[0].shape[1]
    if length % size:
        fits = max(number for number in range(1, size) if length % number == 0)
        longer = length + size - length % size
        raise UserError(
            f"{asked}: does not divide the sequence length {length}; use strategy.context={fits}, "
            f"or sequences of {longer}"
        )
    return Piece(length // size, rank, size, group)


def shard_sequences(inputs: Tensors, piece: Piece) -> Tensors:
    """This rank's contiguous shard of each input with sequences in dimension 1; differentiable.

    Each rank's gradient is multiplied by the number of ranks: see `gather_outputs`.
    """
    length, shards = piece.length * piece.size, []
    for value in inputs:
        is_sequence = value.ndim > 2 or (value.ndim == 2 and not value.is_floating_point())
        if is_sequence and value.shape[1] == piece.length:
            raise UserError(
                f"strategy.context={piece.size}: one input has sequences of {length}, sharded to "
                f"{piece.length} per rank, and another has full sequences of that length; use "
                "another length, or strategy.context=1"
            )
        if value.ndim > 1 and value.shape[1] == length:
            value = redistribute(value, piece.group, Replicate(), Shard(1))
            value = with_hook(value, lambda gradient: gradient / piece.size)
        shards.append(value)
    return tuple(shards)


def gather_outputs(outputs: Any, piece: Piece) -> Any:
    """Concatenate the outputs of all ranks, (N, T / ranks, ...), along dimension 1.

    Differentiable: a rank gets the gradient of its own shard times the number of ranks, because
    gradients of parameters are averaged over the axis later, and should be summed.
    """

    def gathered(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.ndim < 2 or value.shape[1] != piece.length:
            raise UserError(
                f"strategy.context={piece.size}: the network returns the shape "
                f"{tuple(value.shape)} for {piece.length} of {piece.length * piece.size} "
                "positions, so it combines positions (a mean, the last one); return the outputs of "
                "all positions, (N, T, ...), and do that in the task's loss, or use "
                "strategy.context=1"
            )
        value = with_hook(value, enter_backward)
        return redistribute(value, piece.group, Shard(1), Replicate())

    def enter_backward(gradient: Tensor) -> Tensor:
        until_backward_ends(piece)
        return gradient * piece.size

    return tree_map(gathered, outputs)
