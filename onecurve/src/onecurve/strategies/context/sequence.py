"""A network on a piece of each sequence: what enters it is cut, what leaves it is put together.

The sequence is dimension 1. All else of a task (its loss, metrics, logs) is given whole sequences,
the same on every rank of the axis.
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


def on_pieces(
    forward: Callable[..., Any], inputs: Any, group: dist.ProcessGroup, **options: Any
) -> Any:
    """What a network returns for whole sequences, of which each rank computes a piece.

    Args:
        forward: Of the network.
        inputs: What enters it by position, tensors or trees of them.
        group: The ranks in the order of their pieces.
        options: What enters it by keyword.
    """
    leaves, structure = tree_flatten((tuple(inputs), options))
    sequences = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    axis = Axis(group)
    pieces, piece = iter(cut(sequences, axis)), axis.piece(sequences[0].shape[1])
    leaves = [next(pieces) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = tree_unflatten(leaves, structure)
    with working_on(piece):
        outputs = forward(*args, **kwargs)
    return whole(outputs, piece)


class Pieces(WholeSequences):
    """The same in parts, for a pipeline."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.axis = Axis(group)

    def cut(self, inputs: Tensors) -> Tensors:
        return cut(inputs, self.axis)

    def working(self, inputs: Tensors) -> AbstractContextManager[None]:
        return working_on(self.axis.piece(inputs[0].shape[1]))

    def outside(self) -> AbstractContextManager[None]:
        return working_on(None)

    def whole(self, outputs: Any, inputs: Tensors) -> Any:
        return whole(outputs, self.axis.piece(inputs[0].shape[1]))


def cut(inputs: Tensors, axis: Axis) -> Tensors:
    """This rank's piece of each sequence, whose positions follow each other.

    Args:
        inputs: What enters the network. The first, (N, T, ...), says how long a sequence is; others
            with T in dimension 1 are cut as well, and the rest is given whole.
        axis: The ranks.
    """
    asked = f"strategy.context={axis.size}"
    if inputs[0].ndim < 2:
        raise UserError(
            f"{asked}: what enters the network has the shape {tuple(inputs[0].shape)}, and no "
            "dimension 1, that of the sequence, to cut; use strategy.context=1"
        )
    length = inputs[0].shape[1]
    if length % axis.size:
        fits = max(size for size in range(1, axis.size) if length % size == 0)
        longer = length + axis.size - length % axis.size
        raise UserError(
            f"{asked}: does not divide the sequence of {length}; use strategy.context={fits}, or "
            f"sequences of {longer}"
        )
    pieces = []
    for value in inputs:
        is_sequence = value.ndim > 2 or (value.ndim == 2 and not value.is_floating_point())
        if is_sequence and value.shape[1] == length // axis.size:
            raise UserError(
                f"{asked}: one input has sequences of {length}, cut into pieces of "
                f"{value.shape[1]}, and another has whole sequences of that length; use another "
                "length, or strategy.context=1"
            )
        is_cut = value.ndim > 1 and value.shape[1] == length
        pieces.append(_Cut.apply(value, axis) if is_cut else value)
    return tuple(pieces)


def whole(outputs: Any, piece: Piece) -> Any:
    """What all ranks return, put together along dimension 1.

    Differentiable: a rank is handed the gradient of its own piece, times the number of ranks,
    because gradients of parameters are then averaged over the axis and want to be summed.

    Args:
        outputs: A tensor (N, T / ranks, ...) or a tree of them.
        piece: What the network was given.
    """
    size = piece.axis.size
    length = piece.length * size

    def put_together(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.ndim < 2 or value.shape[1] != piece.length:
            raise UserError(
                f"strategy.context={size}: the network returns the shape "
                f"{tuple(value.shape)} for {piece.length} of {length} positions, so it "
                "brings positions together (a mean, a last one); return the outputs of all, "
                "(N, T, ...), and do that in the task's loss, or use strategy.context=1"
            )
        return _Whole.apply(value, piece)

    return tree_map(put_together, outputs)


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return value.chunk(axis.size, 1)[axis.rank].clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        # Each has its own piece's, times their number: see `whole`.
        return ctx.axis.gather(incoming[0], 1) / ctx.axis.size, None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, piece: Piece) -> Tensor:
        ctx.piece = piece
        # Never a view, as it would be of a single sample: FSDP2 warns of one.
        return piece.axis.gather(outputs, 1).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        until_backward_ends(ctx.piece)
        axis = ctx.piece.axis
        return incoming[0].chunk(axis.size, 1)[axis.rank] * axis.size, None
