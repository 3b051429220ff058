"""How the gradients of a schedule reach the optimizer in Lightning's order: stash and deposit.

A schedule that takes the loss runs forward and backward of all micro-batches as one. Lightning
instead asks for a loss first, then clears old gradients (unless it accumulates), then calls
``loss.backward()``. So:

    training_step:  .grad set aside -> schedule -> fresh gradients into the stash -> .grad put back
    loss.backward:  stash x incoming gradient is added to .grad

The incoming gradient carries what Lightning and the precision plugin do to the loss: division by
the number of accumulated batches, the weight of an uneven share, the scale of 16-bit training.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...compat.of_torch import at_end_of_backward

BUCKET_BYTES = 25 * 2**20


class Stash:
    """Gradients of one batch, kept apart from ``.grad`` until the loss's backward."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.gradients: list[Tensor | None] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Take the gradients that are made meanwhile; those from before stay in ``.grad``."""
        before = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        try:
            yield
            self.gradients = [parameter.grad for parameter in self.parameters]
        finally:
            for parameter, gradient in zip(self.parameters, before, strict=True):
                parameter.grad = gradient

    def attach(self, loss: Tensor, scale: float) -> Tensor:
        """The same loss, whose backward deposits the stash.

        Args:
            loss: The value that the task returned, a scalar.
            scale: What the stash was multiplied by against underflow.
        """
        # Autograd calls a function's backward only if one of its inputs needs a gradient.
        needs_gradient = torch.ones((), device=loss.device, requires_grad=True)
        attached: Tensor = _Deposit.apply(loss.detach(), needs_gradient, self, scale)
        return attached

    def deposit(self, factor: Tensor) -> None:
        """Add the stash times a factor to ``.grad``."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            if gradient is None:
                continue
            gradient.mul_(factor)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self.gradients = []


class _Deposit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, loss: Tensor, needs_gradient: Tensor, stash: Stash, scale: float
    ) -> Tensor:
        ctx.stash, ctx.scale = stash, scale
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[None, None, None, None]:
        ctx.stash.deposit(incoming[0] / ctx.scale)
        return None, None, None, None


def average(gradients: list[Tensor], group: dist.ProcessGroup) -> None:
    """Replace gradients by their mean over a group, in buckets of some 25 MB."""
    bucket: list[Tensor] = []
    for position, gradient in enumerate(gradients):
        bucket.append(gradient)
        size = sum(tensor.nbytes for tensor in bucket)
        following = gradients[position + 1 : position + 2]
        if size >= BUCKET_BYTES or not following or following[0].dtype != gradient.dtype:
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat, group=group)
            flat /= dist.get_world_size(group)
            pieces = torch.split(flat, [tensor.numel() for tensor in bucket])
            for tensor, piece in zip(bucket, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))
            bucket = []


def agree_on_overflow(gradients: list[Tensor], device: torch.device) -> None:
    """Let the loss scaler of every rank skip a step that the scaler of one rank must skip.

    Where any rank has a gradient that is not finite, all get one.
    """
    finite = torch.tensor(1.0, device=device)
    parts = [part.to_local() if isinstance(part, DTensor) else part for part in gradients]
    for part in parts:
        finite *= part.isfinite().all()
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    if parts:
        parts[0].div_(finite)


def ending_with(loss: Tensor, function: Callable[[], None]) -> Tensor:
    """The same loss, whose backward pass ends with a call, before any hook sees gradients."""
    made: Tensor = _Ending.apply(loss, function)
    return made


class _Ending(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, function: Callable[[], None]) -> Tensor:
        ctx.function = function
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:
        at_end_of_backward(ctx.function)
        return incoming[0], None
