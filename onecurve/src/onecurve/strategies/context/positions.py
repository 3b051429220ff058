"""Where in the sequence a network is."""

import torch
from torch import Tensor

from .axis import current


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
