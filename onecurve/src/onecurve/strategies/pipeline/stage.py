"""PyTorch's stage, with gradients that can be relied on where the backward pass is split.

A schedule without bubbles computes gradients of a stage's input first and those of its weights
later, along the paths that it has found from one to the other.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
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
