"""Clipping by the norm of all gradients, wherever they lie: one function for every strategy."""

from collections.abc import Iterable
from functools import reduce
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

Place = tuple[DeviceMesh | None, tuple[Placement, ...]]
"""The ranks that hold a gradient, and how it is cut between them; None where it is whole."""


def global_norm(parameters: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> Tensor:
    """The 2-norm over all gradients, a scalar tensor, the same on every rank.

    What several ranks of a mesh hold alike counts once.

    Args:
        parameters: This rank's parameters, whole or sharded (DTensor); several meshes may be among
            them.
        group: Ranks that hold the other parameters of the network; None if each holds all.
    """
    here = [parameter for parameter in parameters if not parameter.is_meta]
    meshes = dict.fromkeys(p.device_mesh for p in here if isinstance(p, DTensor))
    norms = {
        place: torch.nn.utils.get_total_norm([_local(parameter.grad) for parameter in held])
        for place, held in _by_place(here).items()
    }
    if group is None and not meshes:
        return next(iter(norms.values()), torch.tensor(0.0))
    device = here[0].device if here else torch.device("cpu")
    # Also of a mesh of which this rank has no gradient: its others wait.
    squares = {
        mesh: torch.zeros((), dtype=torch.float64, device=device) for mesh in (None, *meshes)
    }
    for (mesh, placements), norm in norms.items():
        copies = prod(
            mesh.size(axis)
            for axis, placement in enumerate(placements)
            if mesh is not None and (placement.is_replicate() or placement.is_partial())
        )
        squares[mesh] = squares[mesh].to(norm.device) + norm.double().square() / copies
    for mesh in meshes:
        for axis in range(mesh.ndim):
            dist.all_reduce(squares[mesh], group=mesh.get_group(axis))
    square = torch.stack([value.to(device) for value in squares.values()]).sum()
    if group is not None:
        dist.all_reduce(square, group=group)
    # In float64 where this rank has none, as other ranks may have it.
    types = [norm.dtype for norm in norms.values()] or [torch.float64]
    return square.sqrt().to(reduce(torch.promote_types, types, torch.float32))


def clip_by_global_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    group: dist.ProcessGroup | None = None,
    counted: Iterable[Tensor] | None = None,
) -> Tensor:
    """Scale gradients in place so that the 2-norm over all of them is at most `max_norm`.

    Args:
        parameters: As for `global_norm`.
        max_norm: Largest norm to allow.
        group: As for `global_norm`.
        counted: Those that no other rank of the group counts; None for all of them.

    Returns:
        The norm before clipping.
    """
    parameters = list(parameters)
    norm = global_norm(parameters if counted is None else counted, group)
    # One operation on many tensors wants them of one kind.
    for (_, placements), held in _by_place(parameters).items():
        scaled: Any = held
        if any(placement.is_partial() for placement in placements):
            # Addends are scaled where they lie: DTensor of torch 2.11 leaves them as they are.
            scaled = [SimpleNamespace(grad=cast(DTensor, each.grad).to_local()) for each in held]
        torch.nn.utils.clip_grads_with_norm_(scaled, max_norm, norm)
    return norm


def _by_place(parameters: Iterable[Tensor]) -> dict[Place, list[Tensor]]:
    """Those that have gradients, by where these lie."""
    places: dict[Place, list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            place: Place = (gradient.device_mesh, tuple(gradient.placements))
        else:
            place = (None, ())
        if gradient is not None:
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
