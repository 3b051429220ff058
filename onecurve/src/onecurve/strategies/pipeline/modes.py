"""Traced code that computes something else in evaluation, such as ``F.dropout(x, training=...)``.

A graph is that of one mode: `self.training` is a constant in it. So the code is traced in both, and
where the graphs differ a layer has one of each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn


class ByMode(nn.Module):
    """A layer that has two graphs over the same modules, one for training and one for evaluation.

    Args:
        network: The network whose mode decides, which is not a part of the layer.
        trained: The graph for training.
        evaluated: The graph for evaluation.
    """

    def __init__(
        self, network: nn.Module, trained: fx.GraphModule, evaluated: fx.GraphModule
    ) -> None:
        super().__init__()
        self.trained, self.evaluated = trained, evaluated
        # A function, which a copy of the layer shares.
        self._trains: Callable[[], bool] = lambda: network.training

    def forward(self, *inputs: Any) -> Any:
        return self.trained(*inputs) if self._trains() else self.evaluated(*inputs)


def by_mode(
    network: nn.Module, trained: fx.GraphModule, evaluated: fx.GraphModule
) -> fx.GraphModule | ByMode:
    """One graph where both modes have the same."""
    is_same = trained.code == evaluated.code
    return trained if is_same else ByMode(network, trained, evaluated)


def graphs_of(layer: nn.Module) -> list[fx.GraphModule]:
    """The graphs of a layer; none of a module that is called as it stands."""
    parts = [layer.trained, layer.evaluated] if isinstance(layer, ByMode) else [layer]
    return [part for part in parts if isinstance(part, fx.GraphModule)]


@contextmanager
def in_mode(network: nn.Module, training: bool) -> Iterator[None]:
    """Switch a network to a mode, unless it is in it, and restore the mode of each part."""
    before = [(part, part.training) for part in network.modules()]
    if network.training != training:
        network.train(training)
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode
