"""Where cut layers read whole inputs, and where pieces of a sequence.

A region says what passes where cut layers begin and end. Outside of sequence parallelism that is
one all-reduce forwards where they end, and one backwards where they begin.
"""

import torch
from torch import Tensor

from .collectives import (
    Group,
    copy,
    joined,
    joined_into_parts,
    own_piece,
    padded,
    sum_gradients,
    summed,
    summed_piece,
)

SEQUENCE = 1
"""The dimension of positions in (N, T, features)."""


class Region:
    """Layers between which whole tensors pass.

    Args:
        group: The ranks that share them.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    def enter(self, tensor: Tensor) -> Tensor:
        """What cut layers read."""
        return copy(self.group, tensor)

    def enter_together(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As `enter`, of several in one message.

        A hook may have made three tensors of one, which then cost as much to send as three.
        """
        return sum_gradients(self.group, *tensors)

    def leave(self, summand: Tensor) -> Tensor:
        """What the ranks' summands add up to, as it passes on."""
        return summed(self.group, summand)

    def pass_on(self, whole: Tensor) -> Tensor:
        """A whole that cut layers have made, as it passes on."""
        return whole


class SequenceRegion(Region):
    """Layers between which each rank has a piece of the sequence: (N, T / size, features).

    A length that the size does not divide is filled up with positions that no layer mixes with
    others: cut layers do not read them. It is that of the latest pass; where activations are
    computed again for an earlier one of another length, PyTorch's checkpoint says so.
    """

    length = 0

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's piece, where the region begins."""
        self.length = whole.shape[SEQUENCE]
        return own_piece(self.group, padded(self.group, whole, SEQUENCE), SEQUENCE)

    def join(self, piece: Tensor) -> Tensor:
        """The whole, where the region ends."""
        return self._trimmed(joined(self.group, piece, SEQUENCE))

    def enter(self, tensor: Tensor) -> Tensor:
        """All positions."""
        return self._trimmed(joined_into_parts(self.group, tensor, SEQUENCE))

    def enter_together(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """All positions of each."""
        if len({tensor.shape[:-1] for tensor in tensors}) > 1:
            return tuple(map(self.enter, tensors))
        widths = [tensor.shape[-1] for tensor in tensors]
        together = tensors[0] if len(tensors) == 1 else torch.cat(tensors, -1)
        return tuple(torch.split(self.enter(together), widths, -1))

    def leave(self, summand: Tensor) -> Tensor:
        """This rank's positions of the sum."""
        return summed_piece(self.group, padded(self.group, summand, SEQUENCE), SEQUENCE)

    def pass_on(self, whole: Tensor) -> Tensor:
        """This rank's positions."""
        return own_piece(self.group, padded(self.group, whole, SEQUENCE), SEQUENCE)

    def _trimmed(self, whole: Tensor) -> Tensor:
        if whole.shape[SEQUENCE] == self.length:
            return whole
        return whole.narrow(SEQUENCE, 0, self.length).clone()
