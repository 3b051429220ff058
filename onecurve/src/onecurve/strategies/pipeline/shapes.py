"""Shapes between layers and the cost of each layer, without memory and without arithmetic.

The layers run on fake tensors (`FakeTensorMode`), which have a shape, a type and a device but no
data. Fake rather than meta tensors, because autocast asks for the device.
Exact: shapes and types, also under autocast; the FLOPs of matrix products, convolutions and
attention. Not exact: the rest of the cost, an estimate from the bytes of what a layer holds and
returns.
Rejects: layers whose shapes or branches depend on values.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...compat.of_torch import without_data
from ...errors import UserError, in_short

Tensors = tuple[Tensor, ...]
Flags = tuple[bool, ...]

BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
FLOPS_PER_BYTE = 10
"""FLOPs that a processor computes while it moves one byte: the order of magnitude."""


class LayerShapes:
    """Runs layers on fake tensors.

    It keeps a copy of the layers without memory, so that it may be asked at any time, whatever has
    become of the layers themselves.

    Args:
        layers: The layers in order, by name.
        autocast: Entered around their forward passes.
        also: What the shapes depend on beside the inputs.
    """

    def __init__(
        self,
        layers: dict[str, nn.Module],
        autocast: Callable[[], AbstractContextManager[Any]],
        also: Callable[[], tuple[Any, ...]] = tuple,
    ) -> None:
        self._layers = with_tensors_on(torch.device("meta"), layers)
        self._autocast = autocast
        self._also = also
        self._boundaries: dict[Any, list[Tensors]] = {}

    def boundaries(self, inputs: Tensors, training: bool, trained: Flags = ()) -> list[Tensors]:
        """The inputs of each layer, and last the outputs of the last one, on the meta device.

        Of the network's inputs only shapes, types, the device and whether they require a gradient
        matter. `trained` tells for each parameter whether it requires one; by default as at first.
        """
        entering = ((v.shape, v.dtype, v.device, training and v.requires_grad) for v in inputs)
        key = training, trained, self._also(), *entering
        if key not in self._boundaries:
            parameters = [p for layer in self._layers.values() for p in layer.parameters()]
            for parameter, flag in zip(parameters, trained, strict=False):
                parameter.requires_grad_(flag)
            self._boundaries[key], _ = self._run(inputs, training)
        return self._boundaries[key]

    def costs(self, example: Tensors | None) -> list[float]:
        """The work of each layer in one training step, in FLOPs.

        A backward pass costs as much as the forward pass for the gradient of the input, if anything
        before the layer is trained, and once more for those of its parameters, if they are. Without
        inputs that the layers take, costs are the numbers of parameters.
        """
        if example is not None:
            with suppress(UserError):
                return self._work(example)
        sizes = [sum(p.numel() for p in layer.parameters()) for layer in self._layers.values()]
        return [1.0 + size for size in sizes]

    def _work(self, inputs: Tensors) -> list[float]:
        boundaries, forward = self._run(inputs, training=True)
        costs = []
        for layer, before, after, flops in zip(
            self._layers.values(), boundaries, boundaries[1:], forward, strict=False
        ):
            trained = any(parameter.requires_grad for parameter in layer.parameters())
            passes = 1 + trained + any(value.requires_grad for value in before)
            size = sum(value.nbytes for value in (*after, *layer.parameters()))
            costs.append(float(passes * (flops + FLOPS_PER_BYTE * size)))
        return costs

    def _run(self, inputs: Tensors, training: bool) -> tuple[list[Tensors], list[int]]:
        """The boundaries, and the FLOPs of each layer's forward pass."""
        flops = []
        # Tensors that are made in inference mode could never require gradients.
        with torch.inference_mode(False), torch.set_grad_enabled(training), without_data():
            layers = with_tensors_on(inputs[0].device, self._layers)
            current = tuple(empty(v).requires_grad_(training and v.requires_grad) for v in inputs)
            boundaries = [current]
            # No leaf, which a layer that works in place may not change.
            current = tuple(v.clone() if v.requires_grad else v for v in current)
            with self._autocast():
                for name, layer in layers.items():
                    with FlopCounterMode(display=False) as counter:
                        current = _call(name, layer.train(training), current)
                    boundaries.append(current)
                    flops.append(counter.get_total_flops())
        # Outside of the mode, in which every new tensor is a fake one.
        return [
            tuple(empty(value, "meta").requires_grad_(value.requires_grad) for value in values)
            for values in boundaries
        ], flops


def _call(name: str, layer: nn.Module, inputs: Tensors) -> Tensors:
    try:
        outputs = call_layer(layer, inputs)
    except Exception as error:  # whatever a layer does with what it was not made for
        raise _cannot_measure(name, error) from error
    tensors = as_tuple(outputs)
    is_tuple_of_one = isinstance(outputs, tuple) and len(outputs) == 1
    if is_tuple_of_one or not all(isinstance(value, Tensor) for value in tensors):
        raise UserError(
            f"strategy=pipeline: layer {name} returns neither a tensor nor a tuple of several; "
            "change it, or use strategy=fsdp"
        )
    return tensors


def call_layer(layer: nn.Module, inputs: Tensors) -> Any:
    """Call a layer with the outputs of the one before, as one tuple if it takes one argument."""
    kinds = [parameter.kind for parameter in signature(layer.forward).parameters.values()]
    takes_one = sum(kind in BY_POSITION for kind in kinds) == 1
    if len(inputs) > 1 and takes_one and Parameter.VAR_POSITIONAL not in kinds:
        return layer(inputs)
    return layer(*inputs)


def as_tuple(outputs: Any) -> Tensors:
    """The outputs of a layer as a tuple, even if it is a single tensor."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def with_tensors_on(device: torch.device, layers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """A copy of the layers with uninitialised parameters and buffers; ties are kept."""
    copies: dict[int, Any] = {}
    for layer in layers.values():
        for buffer in layer.buffers():
            copies[id(buffer)] = torch.empty_like(buffer, device=device)
        for parameter in layer.parameters():
            unset = torch.empty_like(parameter, device=device)
            copies[id(parameter)] = nn.Parameter(unset, parameter.requires_grad)
        for value in (value for module in layer.modules() for value in vars(module).values()):
            if isinstance(value, torch.Generator):  # whose own copy is read from a tensor
                copies[id(value)] = value.clone_state()
            elif isinstance(value, Tensor):  # such as a weight that is computed at each call
                copies[id(value)] = torch.empty_like(value, device=device)
    result = {}
    for name, layer in layers.items():
        try:
            result[name] = deepcopy(layer, copies)
        except (RuntimeError, TypeError) as error:
            raise _cannot_measure(name, error) from error
    return result


def empty(value: Tensor, device: torch.device | str | None = None) -> Tensor:
    """An uninitialised tensor of the same shape and type, contiguous like a message."""
    return torch.empty(value.shape, dtype=value.dtype, device=device or value.device)


def _cannot_measure(name: str, error: Exception) -> UserError:
    return UserError(
        f"strategy=pipeline: layer {name} cannot be measured without data "
        f"({type(error).__name__}: {in_short(error)}); change it so that no shape and no branch "
        "depends on values, or on the size of the batch, or use strategy=fsdp"
    )
