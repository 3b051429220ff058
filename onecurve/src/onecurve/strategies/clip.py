"""Clipping by the norm of all gradients, wherever they lie: one function for every strategy."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from math import inf, prod
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

# By these names they are PyTorch's own, whatever `clip_grad_norm_` is made to call.
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..compat.of_torch import clipping_replaced

Place = tuple[DeviceMesh | None, tuple[Placement, ...]]
"""The ranks that hold a gradient, and how it is sharded between them; None where it is full."""


def global_norm(
    parameters: Iterable[Tensor],
    group: dist.ProcessGroup | None = None,
    norm_type: float = 2.0,
) -> Tensor:
    """The norm over all gradients, a scalar tensor, the same on every rank.

    What several ranks of a mesh hold alike counts once.

    Args:
        parameters: This rank's parameters, full or sharded (DTensor); several meshes may be among
            them.
        group: Ranks that hold the other parameters of the network; None if each holds all.
        norm_type: As for `torch.nn.utils.clip_grad_norm_`.
    """
    here = [parameter for parameter in parameters if not parameter.is_meta]
    meshes = dict.fromkeys(p.device_mesh for p in here if isinstance(p, DTensor))
    norms = {
        place: get_total_norm([_local(parameter.grad) for parameter in held], norm_type)
        for place, held in _by_place(here).items()
    }
    if group is None and not meshes:
        return next(iter(norms.values()), torch.tensor(0.0))
    takes_largest = norm_type == inf
    join = dist.ReduceOp.MAX if takes_largest else dist.ReduceOp.SUM
    device = here[0].device if here else torch.device("cpu")
    # Also of a mesh of which this rank has no gradient: its others wait.
    powers = {mesh: torch.zeros((), dtype=torch.float64, device=device) for mesh in (None, *meshes)}
    for (mesh, placements), norm in norms.items():
        copies = prod(
            mesh.size(axis)
            for axis, placement in enumerate(placements)
            if mesh is not None and (placement.is_replicate() or placement.is_partial())
        )
        before, norm = powers[mesh].to(norm.device), norm.double()
        powers[mesh] = before.maximum(norm) if takes_largest else before + norm**norm_type / copies
    for mesh in meshes:
        for axis in range(mesh.ndim):
            dist.all_reduce(powers[mesh], join, group=mesh.get_group(axis))
    each = torch.stack([value.to(device) for value in powers.values()])
    power = each.amax() if takes_largest else each.sum()
    if group is not None:
        dist.all_reduce(power, join, group=group)
    # In float64 where this rank has none, as other ranks may have it.
    types = [norm.dtype for norm in norms.values()] or [torch.float64]
    total = power if takes_largest else power ** (1 / norm_type)
    return total.to(reduce(torch.promote_types, types, torch.float32))


@contextmanager
def clipping_over_ranks(
    module: nn.Module,
    group: dist.ProcessGroup | None = None,
    counted: Callable[[list[Tensor]], list[Tensor]] = list,
) -> Iterator[None]:
    """Let `torch.nn.utils.clip_grad_norm_` take the norm over the gradients of all ranks.

    Whoever calls it: Lightning, for `gradient_clip_val`, or a task in its own step or hook. Of
    other gradients than the module's it takes the norm as ever.

    Args:
        module: Whose parameters are on several ranks.
        group: As for `global_norm`.
        counted: Of parameters those that no other rank of the group counts.
    """

    def norm(
        gradients: list[Tensor], norm_type: float, error_if_nonfinite: bool, foreach: bool | None
    ) -> Tensor:
        holders = {id(each.grad): each for each in module.parameters() if each.grad is not None}
        own = [holders.get(id(gradient)) for gradient in gradients if not gradient.is_meta]
        parameters: list[Tensor] = [each for each in own if each is not None]
        if len(parameters) < len(own):
            return get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
        total = global_norm(counted(parameters), group, float(norm_type))
        return get_total_norm([total], inf, error_if_nonfinite)

    def scale(
        parameters: Iterable[Tensor], max_norm: float, norm: Tensor, foreach: bool | None
    ) -> None:
        # One operation on many tensors wants them of one kind.
        for (_, placements), held in _by_place(parameters).items():
            scaled: Any = held
            if any(placement.is_partial() for placement in placements):
                # Addends are scaled where they lie: DTensor of torch 2.11 leaves them as they are.
                local = [cast(DTensor, each.grad).to_local() for each in held]
                scaled = [SimpleNamespace(grad=gradient) for gradient in local]
            clip_grads_with_norm_(scaled, max_norm, norm, foreach)

    with clipping_replaced(norm, scale):
        yield


def _by_place(parameters: Iterable[Tensor]) -> dict[Place, list[Tensor]]:
    """Those that have gradients, by where these lie."""
    places: dict[Place, list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.is_meta:
            continue
        place: Place = (None, ())
        if isinstance(gradient, DTensor):
            place = (gradient.device_mesh, tuple(gradient.placements))
        places.setdefault(place, []).append(parameter)
    return places


def _local(gradient: Tensor | None) -> Tensor:
    """What this rank has of it."""
    assert gradient is not None
    if not isinstance(gradient, DTensor):
        return gradient
    if any(placement.is_partial() for placement in gradient.placements):
        # The square of a sum is none of squares.
        gradient = gradient.redistribute(
            placements=[Replicate() if p.is_partial() else p for p in gradient.placements]
        )
    return gradient.to_local()
