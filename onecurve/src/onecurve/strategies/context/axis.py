"""The ranks that hold the pieces of a sequence, and where in it the network is."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..gather import gather


class Axis:
    """Ranks in the order of their pieces, which are of one length.

    Args:
        group: The ranks.

    Attributes:
        rank: Which piece is here.
        size: How many pieces there are.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The pieces of all ranks, one after the other along a dimension: see `gather`."""
        return gather(tensor.movedim(dim, 0), self.group).movedim(0, dim)

    def piece(self, length: int) -> "Piece":
        """Of sequences of a length."""
        return Piece(self, length // self.size)


class Piece(NamedTuple):
    """What a rank has of each sequence.

    What is of another length is none: an input that is not cut, or what a network learns.
    """

    axis: Axis
    length: int

    def start(self, length: int) -> int:
        """The position in the sequence at which so many positions start."""
        return self.axis.rank * length if length == self.length else 0


# Of the process and not of a thread: on GPUs a backward pass has threads of its own.
_current: Piece | None = None


def current() -> Piece | None:
    """The piece that the network is given just now; None where it is given all."""
    return _current


def set_current(piece: Piece | None) -> None:
    """Let the network be given a piece, or all, from now on."""
    global _current
    _current = piece


def positions(tensor: Tensor) -> Tensor:
    """The positions in the sequence of what a network is given: ask, instead of counting from 0.

    With ``strategy.context`` above 1 a rank's network is given a piece of each sequence, and this
    says which. Everywhere else, without any strategy too, they are 0 to T - 1. For embeddings of
    positions, rotary ones, and masks that a network makes itself::

        vectors = self.tokens(text) + self.places(onecurve.positions(text))

    Args:
        tensor: Any (N, T, ...) that the network is given or makes of it.

    Returns:
        Whole numbers (T,) on the tensor's device.
    """
    length = tensor.shape[1]
    piece = current()
    start = 0 if piece is None else piece.start(length)
    return torch.arange(start, start + length, device=tensor.device)
