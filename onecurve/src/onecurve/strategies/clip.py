"""Global-norm gradient clipping: one function for every strategy, however gradients are sharded."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from math import inf, prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

# Imported by name, so they stay PyTorch's own while `clipping_over_ranks` replaces what
# `clip_grad_norm_` calls.
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..compat.of_torch import DisableTorchFunction, clipping_replaced, local_shard

Layout = tuple[DeviceMesh | None, tuple[Placement, ...]]
"""The mesh that a gradient lives on (None if it is a plain tensor), and its placements."""


def global_norm(
    parameters: Iterable[Tensor],
    group: dist.ProcessGroup | None = None,
    norm_type: float = 2.0,
) -> Tensor:
    """The norm over all gradients: a scalar tensor with the same value on every rank.

    A gradient that several ranks replicate counts once. Parameters may be full or sharded, on one
    or several meshes; the ranks of the group hold the other ones (None: each rank holds all).
    """
    here = [parameter for parameter in parameters if not parameter.is_meta]
    norms = {
        layout: get_total_norm([_local(parameter.grad) for parameter in alike], norm_type)
        for layout, alike in _by_layout(here).items()
    }
    if group is None and not any(isinstance(parameter, DTensor) for parameter in here):
        return next(iter(norms.values()), torch.tensor(0.0))
    takes_largest = norm_type == inf
    # As many ranks hold a gradient that is not sharded.
    holders = dist.get_world_size() // (1 if group is None else dist.get_world_size(group))
    power = torch.zeros((), dtype=torch.float64, device=here[0].device if here else "cpu")
    for layout, norm in norms.items():
        norm = norm.to(power.device).double()
        counted = norm**norm_type * _num_shards(layout) / holders
        power = power.maximum(norm) if takes_largest else power + counted
    dist.all_reduce(power, dist.ReduceOp.MAX if takes_largest else dist.ReduceOp.SUM)
    # A rank without gradients uses float64, because other ranks may.
    types = [norm.dtype for norm in norms.values()] or [torch.float64]
    total = power if takes_largest else power ** (1 / norm_type)
    return total.to(reduce(torch.promote_types, types, torch.float32))


@contextmanager
def clipping_over_ranks(
    module: nn.Module,
    group: dist.ProcessGroup | None = None,
    counted: Callable[[list[Tensor]], list[Tensor]] = list,
) -> Iterator[None]:
    """Make `torch.nn.utils.clip_grad_norm_` use the norm over the gradients of all ranks.

    This holds for every caller: Lightning, for `gradient_clip_val`, and a task in its own step or
    hook. For gradients of other modules the function behaves as usual. `counted` selects the
    parameters that no other rank of the group counts.
    """

    def norm(
        gradients: list[Tensor], norm_type: float, error_if_nonfinite: bool, foreach: bool | None
    ) -> Tensor:
        holders = {id(each.grad): each for each in module.parameters() if each.grad is not None}
        owners = [holders.get(id(gradient)) for gradient in gradients if not gradient.is_meta]
        parameters: list[Tensor] = [each for each in owners if each is not None]
        if len(parameters) < len(owners):
            return get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
        with DisableTorchFunction():  # it is no combination of one rank's parameters
            total = global_norm(counted(parameters), group, float(norm_type))
        return get_total_norm([total], inf, error_if_nonfinite)

    def scale(
        parameters: Iterable[Tensor], max_norm: float, norm: Tensor, foreach: bool | None
    ) -> None:
        # The foreach kernels need tensors of one kind.
        for alike in _by_layout(parameters).values():
            clip_grads_with_norm_(alike, max_norm, norm, foreach)

    with clipping_replaced(norm, scale):
        yield


def _by_layout(parameters: Iterable[Tensor]) -> dict[Layout, list[Tensor]]:
    """The parameters that have gradients, grouped by where the gradients live."""
    groups: dict[Layout, list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.is_meta:
            continue
        layout: Layout = (None, ())
        if isinstance(gradient, DTensor):
            layout = (gradient.device_mesh, tuple(gradient.placements))
        groups.setdefault(layout, []).append(parameter)
    return groups


def _num_shards(layout: Layout) -> int:
    mesh, placements = layout
    split = [axis for axis, each in enumerate(placements) if not each.is_replicate()]
    return 1 if mesh is None else prod(map(mesh.size, split))


def _local(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return local_shard(gradient)
