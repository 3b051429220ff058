"""How a schedule's gradients reach the optimizer in Lightning's order, and what hooks see of them.

A schedule that takes the loss runs forward and backward of all micro-batches as one. Lightning
instead asks for a loss first, then clears old gradients (unless it accumulates), then calls
``loss.backward()``. So they are stashed, and deposited:

    training_step:  .grad set aside -> schedule -> fresh gradients into the stash -> .grad put back
    loss.backward:  stash x incoming gradient is added to .grad

The incoming gradient carries what Lightning and the precision plugin do to the loss: division by
the number of accumulated batches, the weight of an uneven share, the scale of 16-bit training.

A rank has the gradients of its own layers. A hook that takes a norm over "all" of them, as
Lightning's `grad_norm` does in `on_before_optimizer_step`, would get another number on every rank.
(PyTorch's `clip_grad_norm_` does not: see `clip.py`.) So after a backward pass the gradient of a
remote parameter is a tensor on the meta device: what changes each gradient alone works on it, and
what asks for its numbers cannot have them, and says so. Optimizers are shown neither
(`remote.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from traceback import extract_tb

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch import Tensor

from ...compat.of_torch import at_end_of_backward, local_shard, sees_outputs
from ...errors import UserError, in_short
from ..collectives import with_hook
from ..unsupported import gradients_aside, place_of
from .network import Network
from .remote import NO_DATA

BUCKET_BYTES = 25 * 2**20


class Stash:
    """The gradients of one batch, kept apart from ``.grad`` until the backward pass of its loss."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.gradients: list[Tensor | None] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Stash the gradients that are computed within the context; ``.grad`` stays as it was."""
        with gradients_aside(self.parameters):
            yield
            self.gradients = [parameter.grad for parameter in self.parameters]

    def attach(self, loss: Tensor, scale: float) -> Tensor:
        """The same loss, whose backward pass adds the stash, divided by its scale, to ``.grad``."""

        def deposit(incoming: Tensor) -> None:
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
                if gradient is not None:
                    gradient.mul_(incoming / scale)
                    before = parameter.grad
                    parameter.grad = gradient if before is None else before.add_(gradient)
            self.gradients = []

        # Autograd calls a function's backward only if one of its inputs needs a gradient.
        needs_gradient = torch.ones_like(loss.detach(), requires_grad=True)
        return with_hook(loss.detach() * needs_gradient, deposit)


def ending_with(loss: Tensor, function: Callable[[], None]) -> Tensor:
    """The same loss, whose backward pass ends with a call, before any hook sees gradients."""
    # FSDP2 ends its own work so, and asks for that later than this loss.
    return with_hook(loss, lambda _: at_end_of_backward(partial(at_end_of_backward, function)))


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


def scaler_of(precision: Precision) -> torch.amp.GradScaler | None:
    """The gradient scaler of 16-bit training, if there is one."""
    return precision.scaler if isinstance(precision, MixedPrecision) else None


def agree_on_overflow(parameters: Iterable[Tensor], device: torch.device) -> None:
    """Make the gradient scalers of all ranks skip a step that one of them must skip.

    If a rank has a gradient that is not finite, all get one.
    """
    finite = torch.tensor(1.0, device=device)
    parts = [local_shard(p.grad) for p in parameters if p.grad is not None and not p.is_meta]
    for part in parts:
        finite *= part.isfinite().all()
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    if parts:
        parts[0].div_(finite)


def explained(
    error: BaseException, module: LightningModule, network: Network, strategy: str
) -> UserError | None:
    """Explain an error that is caused by layers of other ranks; None for any other error."""
    message, names = str(error), {frame.name for frame in extract_tb(error.__traceback__)}
    # PyTorch has no class of its own for it.
    lacks_data = isinstance(error, RuntimeError | TypeError) and NO_DATA.search(message)
    # A hook may have kept what its layer returned when it was measured without data.
    measured = type(error).__module__.startswith("torch._subclasses")
    is_in_step = "_call_task" in names
    if lacks_data and is_in_step:
        return layers_used_outside_network(module, network)
    if lacks_data:
        line = (
            f"a hook of {type(module).__name__} or a callback{place_of(error)} reads, draws or "
            "compares a weight or a gradient that another rank has; use "
            "trainer.gradient_clip_val, self.clip_gradients(...) or "
            "self.trainer.strategy.gradient_norm(), which know all gradients, `with "
            "self.trainer.strategy.full_parameters(self):` for weights, requires_grad alone to "
            "unfreeze, onecurve.ExponentialMovingAverage for an average of weights, or strategy=ddp"
        )
    elif (is_in_step or measured) and any(map(sees_outputs, network.owner.modules())):
        line = (
            f"a step of {type(module).__name__} fails ({in_short(error)}), and hooks of its layers "
            "(register_forward_hook) run on the rank that has the layer, for each micro-batch; let "
            "the network return what the step needs, or use strategy=fsdp"
        )
    else:
        return None
    return UserError(f"strategy={strategy}: {line}")


def layers_used_outside_network(module: LightningModule, network: Network) -> UserError:
    """The error for a step that uses layers of other ranks outside of the network."""
    return UserError(
        f"strategy=pipeline: a step of {type(module).__name__} uses layers, what passes between "
        f"them, or their parameters or gradients, in another way than by calling {network.called}; "
        "use weight_decay of the optimizer for a penalty, copy modules in __init__, or strategy=ddp"
    )
