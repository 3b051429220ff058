"""A stage of a pipeline: its layers one after the other, and PyTorch's stage around them.

A schedule without bubbles computes gradients of a stage's input first and those of its weights
later, along the paths that it has found from one to the other.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from ...compat.of_torch import tree_leaves, tree_map_only


class Stage(PipelineStage):
    """A stage whose gradients share no memory.

    Autograd hands one tensor to both terms of ``a + b``, or on to the stage before, and PyTorch
    then adds the next micro-batch's gradients to it in place: it would count twice. It also
    detaches in place what a stage returned, which layers may have kept for gradients of weights.

    Attributes:
        splits_backward: Whether its schedule does so.
    """

    splits_backward: bool = False

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """Pass a micro-batch through the layers."""
        outputs = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        return tree_map_only(Tensor, torch.clone, outputs) if self.splits_backward else outputs

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """Compute gradients of one micro-batch: of the input, the weights, or, in full, of both."""
        result = self._backward(backward_type, bwd_kwargs, last_backward)
        # What is sent must be contiguous.
        return tree_map_only(Tensor, Tensor.contiguous, result[0]), result[1]

    def _backward(self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool) -> Any:
        if backward_type != "weight":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        saved = tree_leaves([group["grads"] for group in bwd_kwargs["param_groups"]])
        before = {parameter: parameter.grad for parameter in self.submod.parameters()}
        result = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        new = [parameter for parameter, gradient in before.items() if gradient is None]
        keep_apart(new, [gradient for gradient in saved if gradient is not None])
        return result


def keep_apart(parameters: Iterable[Tensor], others: Iterable[Tensor]) -> None:
    """Copy gradients that lie where another one or one of other tensors does."""
    taken = {other.untyped_storage().data_ptr() for other in others}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        place = gradient.untyped_storage().data_ptr()
        # One that was expanded lies in a single place.
        if place in taken or 0 in gradient.stride():
            parameter.grad = gradient.clone()
        taken.add(place)


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
