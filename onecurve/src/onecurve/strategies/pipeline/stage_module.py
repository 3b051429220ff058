"""A stage's layers as one module."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, nn

Tensors = tuple[Tensor, ...]
BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


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
        outputs: Any = tuple(value.clone() if value.requires_grad else value for value in inputs)
        with self.context():
            for layer in self.layers:
                outputs = call_layer(layer, as_tuple(outputs))
        if isinstance(outputs, tuple):
            return tuple(value.contiguous() for value in outputs)
        return outputs.contiguous()


def call_layer(layer: nn.Module, inputs: Tensors) -> Any:
    """Call a layer with what the one before it returned.

    Several tensors become its arguments; where it takes one argument they are that, a tuple, as
    nn.Sequential passes it on.
    """
    return layer(inputs) if len(inputs) > 1 and _takes_one(layer) else layer(*inputs)


def as_tuple(outputs: Any) -> Tensors:
    """What a layer returned, also where that is a single tensor."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _takes_one(layer: nn.Module) -> bool:
    kinds = [parameter.kind for parameter in signature(layer.forward).parameters.values()]
    named = [kind for kind in kinds if kind in BY_POSITION]
    return len(named) == 1 and Parameter.VAR_POSITIONAL not in kinds
