"""BatchNorm with the statistics of the global batch, for ranks that share it: `sync_batchnorm`.

Outputs, gradients and running statistics are those of one process with all rows: with uneven
shares, with one row on a rank, or none that counts, in double precision, and on CPUs. PyTorch's
SyncBatchNorm is for GPUs alone.

Layers stay what they are: all of them call `F.batch_norm`, which is replaced for the length of a
fit. For each layer the ranks send two numbers per channel and a count in the forward pass, and two
numbers per channel in the backward pass.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.layer_sync import LayerSync, TorchSyncBatchNorm
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..compat.of_torch import BatchNorm, batch_norm_gradients, batch_norm_statistics, is_in_backward
from ..compat.patches import replaced
from ..errors import say, some_of
from .collectives import Group, gather
from .mesh.sizes import Sizes

if TYPE_CHECKING:
    from .step import Steps

ONE_VALUE = "Expected more than 1 value per channel when training, got one over all ranks"
_of_torch: Any = F.batch_norm


class Call(NamedTuple):
    """The arguments of a call of `F.batch_norm`."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


def computed_by(compute: Callable[[Call], Tensor | None]) -> AbstractContextManager[None]:
    """Let a function compute BatchNorm within a context, but for calls of which it returns None."""
    before: Any = F.batch_norm

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def batch_norm(*args: Any, **options: Any) -> Any:
        call = Call(*args, **options)
        output = compute(call)
        return before(*call) if output is None else output

    return replaced(F, "batch_norm", batch_norm)


def synchronized(steps: "Steps", group: Group) -> AbstractContextManager[None]:
    """Let BatchNorm use the statistics of a group of ranks within a context.

    Only in steps, and in backward passes, where activation checkpointing calls layers again. Other
    hooks may call a network on one rank alone.
    """

    def compute(call: Call) -> Any:
        context = steps.current
        is_in_step = context is not None and (steps.is_running or is_in_backward())
        if context is None or not is_in_step or not call.training:
            return None
        # A rank without samples works on a row of another rank.
        count = call.input.numel() // call.input.shape[1] if context.counts else 0
        running = call.running_mean, call.running_var, call.momentum
        return _Normalize.apply(call.input, call.weight, call.bias, call.eps, group, count, running)

    return computed_by(compute)


def is_exact(layer_sync: LayerSync | None, sizes: Sizes) -> bool:
    """Whether `sync_batchnorm` is on, and ranks that share batches can follow it.

    In a pipeline they cannot: a layer has passed a micro-batch on before the next one comes.
    """
    is_asked = isinstance(layer_sync, TorchSyncBatchNorm)
    return is_asked and sizes.data_parallel > 1 and sizes.pipeline == 1


def use_other_sync(layer_sync: LayerSync | None, task: nn.Module) -> None:
    """Apply a plugin that a Trainer has for layers beside `sync_batchnorm`."""
    if layer_sync is not None and not isinstance(layer_sync, TorchSyncBatchNorm):
        layer_sync.apply(task)


def report_statistics_of_shares(
    task: nn.Module, strategy: str, sizes: Sizes, layer_sync: LayerSync | None
) -> None:
    """Print it if ranks compute the statistics of their rows alone; a pipeline says so itself."""
    exact = is_exact(layer_sync, sizes) or sizes.data_parallel == 1
    if sizes.context > 1 and sizes.pipeline == 1:
        report_statistics(task, strategy, "a rank's part of each sequence", "strategy.context=1")
    elif not exact and sizes.pipeline == 1:
        instead = "trainer.sync_batchnorm=true"
        report_statistics(task, strategy, "a rank's share of each batch", instead)


def report_statistics(
    task: nn.Module,
    strategy: str,
    part: str,
    instead: str = "strategy=ddp trainer.sync_batchnorm=true",
) -> None:
    """Print which layers in training mode have the statistics of a part of a batch."""
    layers = [
        name
        for name, part in task.named_modules()
        if isinstance(part, BatchNorm) and not isinstance(part, nn.SyncBatchNorm) and part.training
    ]
    if layers:
        say(
            f"strategy={strategy}: BatchNorm ({some_of(layers)}) has the statistics of {part}, so "
            f"the curve is not that of strategy=single; {instead} computes those of the full batch"
        )


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: Group,
        count: int,
        running: tuple[Tensor | None, Tensor | None, float],
    ) -> Any:
        mean, variance, total = over_ranks(*batch_norm_statistics(input), count, group)
        if count <= 1 and total <= 1:
            raise ValueError(ONE_VALUE)
        for kept, new in zip(running, (mean, variance * (total / (total - 1))), strict=False):
            if isinstance(kept, Tensor):
                kept.lerp_(new.to(kept.dtype), running[2])
        ctx.save_for_backward(input, weight, bias, mean, variance, total)
        ctx.options = eps, group, count
        return normalized(input, mean, variance, weight, bias, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        input, weight, bias, mean, variance, total = ctx.saved_tensors
        eps, group, count = ctx.options
        needed = ctx.needs_input_grad[:3]
        factor = None if weight is None else weight.to(mean.dtype)
        of_input, of_weight, of_bias = batch_norm_gradients(
            gradient, input, factor, mean, variance, eps
        )
        if needed[0]:
            sums = torch.stack([of_weight, of_bias]) * (count > 0)
            dist.all_reduce(sums, group=group)
            if count:
                # Through mean and variance, which depend on this rank's rows.
                inverse = torch.rsqrt(variance + eps)
                slope, shift = sums * (-inverse if factor is None else -inverse * factor) / total
                slope = slope * inverse
                shift = shift - slope * mean
                through = torch.addcmul(
                    _per_channel(input, shift), input.to(mean.dtype), _per_channel(input, slope)
                )
                of_input = through.add_(of_input).to(input.dtype)
        to_weight = of_weight.to(weight.dtype) if needed[1] else None
        return of_input, to_weight, of_bias.to(bias.dtype) if needed[2] else None, *[None] * 4


def normalized(
    input: Tensor, mean: Tensor, variance: Tensor, weight: Any, bias: Any, eps: float
) -> Any:
    """Normalize by these statistics, in their precision."""
    factors = [None if each is None else each.to(mean.dtype) for each in (weight, bias)]
    return _of_torch(input, mean, variance, *factors, False, 0.0, eps)


def over_ranks(
    mean: Tensor, variance: Tensor, count: int, group: Group
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance per channel, and the number of values, over the ranks of a group.

    Sums of squares would lose digits where a mean is large. Without a group: of this process.
    """
    if group is None:
        return mean, variance, mean.new_tensor(count)
    packed = torch.cat([mean, variance * count, mean.new_full((1,), count)])[None]
    means, squares, counts = gather(packed, group).tensor_split([len(mean), 2 * len(mean)], 1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    return mean, (squares + counts * (means - mean).square()).sum(0) / total, total


def _per_channel(input: Tensor, of_channels: Tensor) -> Tensor:
    return of_channels.view(-1, *[1] * (input.ndim - 2))
