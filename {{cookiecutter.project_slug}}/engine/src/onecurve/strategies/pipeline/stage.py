"""A stage: consecutive layers as one module, and PyTorch's stage around it."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.utils._pytree import tree_leaves

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


class Stage(PipelineStage):
    """PyTorch's stage, whose gradients share no memory where the backward pass is split.

    Autograd hands one tensor to both terms of ``a + b``, or on to the stage before, and PyTorch
    then adds the next micro-batch's gradients to it in place: it would count twice.
    """

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> None:
        """Compute the gradients of the weights for one micro-batch."""
        new = [parameter for parameter in self.submod.parameters() if parameter.grad is None]
        saved = tree_leaves([group["grads"] for group in self._groups(bwd_chunk_id)])
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **options)
        keep_apart(new, [gradient for gradient in saved if gradient is not None])

    def _groups(self, chunk: int) -> Iterable[dict[str, Any]]:
        """What the backward pass of the input has left for that of the weights."""
        _, groups, *_ = self.backward_state[chunk]
        return groups or ()


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
