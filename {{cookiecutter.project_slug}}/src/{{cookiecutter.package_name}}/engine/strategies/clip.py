"""Clipping by the norm of all gradients, wherever they lie: one function for every strategy."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def clip_by_global_norm(
    parameters: Iterable[Tensor], max_norm: float, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale gradients in place so that the 2-norm over all of them is at most `max_norm`.

    Args:
        parameters: This rank's parameters, whole or sharded (DTensor).
        max_norm: Largest norm to allow.
        group: Ranks that hold the other parameters of the network; None if each holds all.

    Returns:
        The norm before clipping, a scalar tensor, the same on every rank.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if group is not None:
        square = norm.float().square()
        dist.all_reduce(square, group=group)
        norm = square.sqrt()
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
