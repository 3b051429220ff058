"""Runs a network on shards of sequences: its inputs are sharded, and its outputs gathered.

The sequence is dimension 1. The rest of a task (loss, metrics, logs) gets full sequences, the same
on every rank of the axis.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...compat.of_torch import tree_flatten, tree_map, tree_unflatten
from ...errors import UserError
from ..sequences import WholeSequences
from .attention import until_backward_ends, working_on
from .axis import Axis, Piece

Tensors = tuple[Tensor, ...]


def run_on_shards(
    forward: Callable[..., Any], inputs: Any, group: dist.ProcessGroup, **options: Any
) -> Any:
    """Run a network on this rank's shards of full sequences, and gather its outputs.

    Args:
        forward: The network's `forward`.
        inputs: Its positional arguments, tensors or trees of them.
        group: The ranks in the order of their shards.
        options: Its keyword arguments.
    """
    leaves, structure = tree_flatten((tuple(inputs), options))
    sequences = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    axis = Axis(group)
    shards, piece = iter(shard_sequences(sequences, axis)), axis.piece(sequences[0].shape[1])
    leaves = [next(shards) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = tree_unflatten(leaves, structure)
    with working_on(piece):
        outputs = forward(*args, **kwargs)
    return gather_outputs(outputs, piece)


class Pieces(WholeSequences):
    """The steps of `run_on_shards` one by one, for a pipeline."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.axis = Axis(group)

    def cut(self, inputs: Tensors) -> Tensors:
        return shard_sequences(inputs, self.axis)

    def working(self, inputs: Tensors) -> AbstractContextManager[None]:
        return working_on(self.axis.piece(inputs[0].shape[1]))

    def outside(self) -> AbstractContextManager[None]:
        return working_on(None)

    def whole(self, outputs: Any, inputs: Tensors) -> Any:
        return gather_outputs(outputs, self.axis.piece(inputs[0].shape[1]))


def shard_sequences(inputs: Tensors, axis: Axis) -> Tensors:
    """This rank's contiguous shard of each sequence; differentiable.

    Args:
        inputs: The inputs of the network. The first, (N, T, ...), defines the length T; others with
            T in dimension 1 are sharded as well, and the rest is passed in full.
        axis: The ranks.
    """
    asked = f"strategy.context={axis.size}"
    if inputs[0].ndim < 2:
        raise UserError(
            f"{asked}: the input of the network has the shape {tuple(inputs[0].shape)}, so there "
            "is no dimension 1, the sequence, to shard; use strategy.context=1"
        )
    length = inputs[0].shape[1]
    if length % axis.size:
        fits = max(size for size in range(1, axis.size) if length % size == 0)
        longer = length + axis.size - length % axis.size
        raise UserError(
            f"{asked}: does not divide the sequence length {length}; use strategy.context={fits}, "
            f"or sequences of {longer}"
        )
    shards = []
    for value in inputs:
        is_sequence = value.ndim > 2 or (value.ndim == 2 and not value.is_floating_point())
        if is_sequence and value.shape[1] == length // axis.size:
            raise UserError(
                f"{asked}: one input has sequences of {length}, sharded to {value.shape[1]} per "
                "rank, and another has full sequences of that length; use another length, or "
                "strategy.context=1"
            )
        is_sharded = value.ndim > 1 and value.shape[1] == length
        shards.append(_Shard.apply(value, axis) if is_sharded else value)
    return tuple(shards)


def gather_outputs(outputs: Any, piece: Piece) -> Any:
    """Concatenate the outputs of all ranks along dimension 1.

    Differentiable: a rank gets the gradient of its own shard times the number of ranks, because
    gradients of parameters are averaged over the axis later, and should be summed.

    Args:
        outputs: A tensor (N, T / ranks, ...) or a tree of them.
        piece: The shard that the network got.
    """
    size = piece.axis.size
    length = piece.length * size

    def gathered(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.ndim < 2 or value.shape[1] != piece.length:
            raise UserError(
                f"strategy.context={size}: the network returns the shape "
                f"{tuple(value.shape)} for {piece.length} of {length} positions, so it "
                "combines positions (a mean, the last one); return the outputs of all positions, "
                "(N, T, ...), and do that in the task's loss, or use strategy.context=1"
            )
        return _Gather.apply(value, piece)

    return tree_map(gathered, outputs)


class _Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return value.chunk(axis.size, 1)[axis.rank].clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        # Each rank's gradient is multiplied by the number of ranks: see `gather_outputs`.
        return ctx.axis.gather(incoming[0], 1) / ctx.axis.size, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, piece: Piece) -> Tensor:
        ctx.piece = piece
        # A copy, because FSDP2 warns of views, which this would be with a single sample.
        return piece.axis.gather(outputs, 1).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        until_backward_ends(ctx.piece)
        axis = ctx.piece.axis
        return incoming[0].chunk(axis.size, 1)[axis.rank] * axis.size, None
