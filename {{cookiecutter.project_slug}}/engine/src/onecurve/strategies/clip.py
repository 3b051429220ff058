"""Clipping by the norm of all gradients, wherever they lie: one function for every strategy."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def global_norm(parameters: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> Tensor:
    """The 2-norm over all gradients, a scalar tensor, the same on every rank.

    Args:
        parameters: This rank's parameters, whole or sharded (DTensor).
        group: Ranks that hold the other parameters of the network; None if each holds all.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if group is not None:
        square = norm.double().square()
        dist.all_reduce(square, group=group)
        norm = square.sqrt().to(torch.promote_types(norm.dtype, torch.float32))
    return norm


def clip_by_global_norm(
    parameters: Iterable[Tensor], max_norm: float, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale gradients in place so that the 2-norm over all of them is at most `max_norm`.

    Args:
        parameters: As for `global_norm`.
        max_norm: Largest norm to allow.
        group: As for `global_norm`.

    Returns:
        The norm before clipping.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    norm = global_norm(parameters, group)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
