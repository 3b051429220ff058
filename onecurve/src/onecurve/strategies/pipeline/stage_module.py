"""A stage's layers as one module."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from .composition import run_layers


class StageModule(nn.Module):
    """Consecutive layers as one module.

    Args:
        layers: The layers.
        context: Entered around each forward pass, such as autocast. (Around the whole schedule it
            would also hold for the backward pass.)
    """

    def __init__(
        self, layers: list[nn.Module], context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.context = context

    def forward(self, *inputs: Tensor) -> Any:
        """Pass tensors through the layers.

        What comes from another stage is a leaf of autograd, which a layer that works in place may
        not change; what goes to another must be contiguous.
        """
        own = tuple(value.clone() if value.requires_grad else value for value in inputs)
        with self.context():
            outputs = run_layers(list(self.layers), own)
        if isinstance(outputs, tuple):
            return tuple(value.contiguous() for value in outputs)
        return outputs.contiguous()
