"""Initialises weights by a function of `torch.nn.init`. From a checkpoint: init=FILE."""

from collections.abc import Callable

from onecurve.errors import UserError
from torch import Tensor, nn

Layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def initialize(net: nn.Module, *, weight: Callable[[Tensor], Tensor] | None) -> None:
    """Initialise weights with a function of `torch.nn.init`, and biases with zero.

    Args:
        net: the network, changed in place.
        weight: fills a weight in place; None keeps the initialisation of PyTorch.

    Raises:
        UserError: the network `is_pretrained`.
    """
    if weight is None:
        return
    if getattr(net, "is_pretrained", False):
        raise UserError("init: would overwrite pretrained weights; use init=default")
    for layer in net.modules():
        if isinstance(layer, Layers):
            weight(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
