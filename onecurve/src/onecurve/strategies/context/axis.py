"""The ranks that share sequences, and the shard of a sequence that the network works on."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..collectives import gather


class Axis:
    """The ranks that share each sequence, in the order of their shards.

    Attributes:
        rank: The number of this rank's shard.
        size: The number of shards, which all have the same length.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Concatenate the shards of all ranks along a dimension: see `gather`."""
        return gather(tensor, self.group, dim)

    def piece(self, length: int) -> "Piece":
        """This rank's shard of sequences with a length."""
        return Piece(self, length // self.size)


class Piece(NamedTuple):
    """This rank's shard of each sequence.

    A tensor of another length is not a shard: an input that is not sharded, or a parameter.
    """

    axis: Axis
    length: int

    def start(self, length: int) -> int:
        """The position at which a tensor of this length starts: 0 if it is not a shard."""
        return self.axis.rank * length if length == self.length else 0


class Current:
    """Of this process, not of a thread: on GPUs a backward pass runs in other threads."""

    piece: Piece | None = None


def current() -> Piece | None:
    """The shard that the network works on; None if it gets full sequences."""
    return Current.piece


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
    piece = current()
    start = 0 if piece is None else piece.start(length)
    return torch.arange(start, start + length, device=tensor.device)
