"""PyTorch's stage, with gradients that can be relied on where the backward pass is split.

A schedule without bubbles computes gradients of a stage's input first and those of its weights
later, along the paths that it has found from one to the other.
"""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.utils._pytree import tree_leaves, tree_map_only

from ..tolerance import IN_16_BITS, tolerance


class Stage(PipelineStage):
    """A stage whose gradients share no memory, and which compares the first ones with whole ones.

    Autograd hands one tensor to both terms of ``a + b``, or on to the stage before, and PyTorch
    then adds the next micro-batch's gradients to it in place: it would count twice. It also
    detaches in place what a stage returned, which layers may have kept for gradients of weights.

    Attributes:
        splits_backward: Whether its schedule does so.
    """

    splits_backward: bool = False
    _wrong: Sequence[int] = ()
    _groups: Any = None
    """What the backward pass of the first input has left for that of the weights."""
    _expected: dict[Tensor, Tensor | None]

    def wrong(self) -> list[Tensor]:
        """Parameters whose gradients a split backward pass gets wrong.

        As where a path to them comes from the output, but not from the input.
        """
        parameters = list(self.submod.parameters())
        return [parameters[i] for i in self._wrong]

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
        if backward_type == "input" and self._groups is None:
            if isinstance(self.submod, FSDPModule):
                # As PyTorch does before each backward pass but the last.
                self.submod.set_reshard_after_backward(False)
                self.submod.set_requires_gradient_sync(False)
            self._expected = self._whole(**bwd_kwargs)
            result = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
            self._groups = result[1]
            return result
        if backward_type != "weight":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        groups = bwd_kwargs["param_groups"]
        saved = tree_leaves([group["grads"] for group in groups])
        before = {parameter: parameter.grad for parameter in self.submod.parameters()}
        if groups is self._groups:
            for parameter in before:
                parameter.grad = None
        result = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        new = [parameter for parameter, gradient in before.items() if gradient is None]
        keep_apart(new, [gradient for gradient in saved if gradient is not None])
        if groups is self._groups:
            different = set(_different(self._expected))
            self._wrong = [i for i, parameter in enumerate(before) if parameter in different]
            self._groups, self._expected = (), {}
            for parameter, gradient in before.items():
                if gradient is not None:
                    found = parameter.grad
                    parameter.grad = gradient if found is None else gradient.add_(found)
        return result

    def _whole(
        self, stage_output: Any, output_grads: Any, input_values: Any
    ) -> dict[Tensor, Tensor | None]:
        """The gradients of the weights by one backward pass for one micro-batch."""
        trained = [weight for weight in self.submod.parameters() if weight.requires_grad]
        outputs = stage_output if isinstance(stage_output, tuple) else (stage_output,)
        incoming = output_grads or [None] * len(outputs)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, incoming, strict=True)
            if output is not None and (not isinstance(output, Tensor) or output.requires_grad)
        ]
        if not pairs or not trained:
            return {}
        gradients = torch.autograd.grad(
            [output for output, _ in pairs],
            trained,
            [gradient for _, gradient in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        return dict(zip(trained, gradients, strict=True))


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


def _different(expected: dict[Tensor, Tensor | None]) -> Iterable[Tensor]:
    """The parameters whose gradients are not those expected, but for rounding of all of them."""
    sizes = [gradient.abs().max() for gradient in expected.values() if gradient is not None]
    largest = float(torch.stack(sizes).max()) if sizes else 0.0
    if not isfinite(largest):
        return
    for parameter, gradient in expected.items():
        if gradient is None:
            continue
        found = torch.zeros_like(gradient) if parameter.grad is None else parameter.grad
        most = IN_16_BITS * float(gradient.abs().max()) + tolerance(gradient.dtype) * largest
        if not torch.allclose(found, gradient, rtol=0, atol=most, equal_nan=True):
            yield parameter
