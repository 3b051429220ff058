"""Differentiable collectives: tensors are gathered, sharded and summed over a group of ranks.

PyTorch's placements describe how a tensor is distributed: `Replicate` (every rank has all of it),
`Shard` (each rank has a shard) and `Partial` (each rank has an addend of the sum). The tensors are
plain ones. `DTensor.redistribute` would send the same, but on 2 CPU ranks it takes 1.5 to 2 times
as long for tensors of 0.5 MB, and its ``to_local`` returns a view that ``nn.ReLU(inplace=True)``
cannot write to.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from ..compat.patches import replaced
from ..errors import UserError
from ..torch_versions import installed

if TYPE_CHECKING:
    from .step import Steps

Group = dist.ProcessGroup | None
"""Ranks; None stands for all."""
MOST_DIMENSIONS = 16
Computes = Callable[..., Tensor]
# Compiled by torch 2.11, a collective has no gradient.
_uncompiled: Callable[[Computes], Computes] = (
    torch.compiler.disable if installed() < (2, 12) else lambda function: function
)


@_uncompiled
def redistribute(
    tensor: Tensor,
    group: Group,
    before: Placement,
    after: Placement,
    gradient: Placement | None = None,
) -> Tensor:
    """Change the placement of a tensor; the backward pass redistributes its gradient.

    Args:
        tensor: This rank's local tensor.
        group: The ranks; all of them must call this.
        before: The current placement.
        after: The new placement.
        gradient: The placement of the result's gradient: `Partial` if each rank computes a
            different part of what follows; None for `after`.
    """
    result: Tensor = _Redistribute.apply(tensor, group, before, after, gradient or after)
    return result


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, group: Group, before: Any, after: Any, gradient: Placement
    ) -> Tensor:
        ctx.group, ctx.before, ctx.gradient = group, before, gradient
        # The gradient of every addend is that of the sum.
        ctx.back = Replicate() if before.is_partial() else before
        return _move(tensor, group, before, after)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Any:
        # Itself differentiable, so that second-order gradients are right.
        return redistribute(incoming, ctx.group, ctx.gradient, ctx.back, ctx.before), *[None] * 4


def _move(tensor: Tensor, group: Group, before: Any, after: Any) -> Tensor:
    if before.is_replicate() and after.is_replicate():
        return tensor.view_as(tensor)
    size = dist.get_world_size(group)
    if after.is_shard():
        shards = tensor.chunk(size, after.dim)
        if before.is_replicate():
            return shards[dist.get_rank(group)].clone(memory_format=torch.contiguous_format)
        result = torch.empty_like(shards[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter_tensor(result, torch.cat(shards), group=group)
        return result
    if before.is_shard():
        result = tensor.new_empty((size * tensor.shape[0], *tensor.shape[1:]))
        dist.all_gather_into_tensor(result, tensor.contiguous(), group=group)
        return torch.cat(result.chunk(size), before.dim) if before.dim else result
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result


def with_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Tensor:
    """The same tensor, whose gradient passes through a hook; the given tensor has none."""
    view = tensor.view_as(tensor)
    if view.requires_grad:
        view.register_hook(hook)  # type: ignore[no-untyped-call]
    return view


def gather(tensor: Tensor, group: Group, dim: int = 0) -> Tensor:
    """Concatenate the tensors of all ranks, of one shape, in rank order.

    The gradient of each is the sum of the gradients that the ranks compute for it.
    """
    return redistribute(tensor, group, Shard(dim), Replicate(), Partial())


def shapes_of_all(tensor: Tensor, group: Group) -> list[list[int]]:
    """The shape of each rank's tensor; gloo ends the process where a collective needs one shape."""
    sizes = [tensor.ndim, *tensor.shape, *[0] * (MOST_DIMENSIONS - tensor.ndim)]
    shape = torch.tensor(sizes, device=tensor.device)
    shapes = gather(shape[None], group).tolist()
    return [each[1 : 1 + each[0]] for each in shapes]


def reject_unlike(call: str, shapes: list[list[int]]) -> None:
    """Reject tensors of different shapes."""
    if unlike := [each for each in shapes if each != shapes[0]]:
        raise UserError(
            f"{call}: ranks pass tensors of different shapes, {shapes[0]} and {unlike[0]}, as when "
            "they share a batch unevenly; self.trainer.strategy.all_samples(tensor) gathers a row "
            "per sample of the global batch; or use strategy=single"
        )


def gather_uneven(tensor: Tensor, group: Group) -> Tensor:
    """Like `gather`, for ranks with different numbers of rows."""
    shapes = shapes_of_all(tensor, group)
    reject_unlike("all_samples", [[0, *shape[1:]] for shape in shapes])
    sizes = [shape[0] for shape in shapes]
    missing = tensor.new_zeros(max(sizes) - len(tensor), *tensor.shape[1:])
    parts = gather(torch.cat([tensor, missing]), group).chunk(len(sizes))
    return torch.cat([rows[:size] for rows, size in zip(parts, sizes, strict=True)])


def own_gathers_checked(steps: "Steps") -> AbstractContextManager[None]:
    """Reject what a step gathers by PyTorch itself if it is not a row per sample, in a context."""
    gather_all = dist.all_gather

    def all_gather(
        tensor_list: Any, tensor: Tensor, group: Group = None, async_op: bool = False
    ) -> Any:
        if steps.is_running and group in (None, dist.group.WORLD):
            if steps.size < dist.get_world_size():  # which hold parts of one network
                raise UserError(
                    "torch.distributed.all_gather: in a step it gathers the same samples from "
                    "several ranks; self.trainer.strategy.all_samples(tensor) gathers a row per "
                    "sample of the global batch; or use strategy=ddp"
                )
            reject_unlike("torch.distributed.all_gather", shapes_of_all(tensor, None))
        return gather_all(tensor_list, tensor, group, async_op)

    return replaced(dist, "all_gather", all_gather)
