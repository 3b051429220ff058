"""One checkpoint out of the ranks' parts, and each rank's part out of one checkpoint."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ...errors import UserError
from ..fsdp.state import gather
from .placement import Placement


def model_part(module: nn.Module, placement: Placement) -> dict[str, Any]:
    """This rank's part of the network's state: what has memory here."""
    return {name: value for name, value in module.state_dict().items() if placement.holds(name)}


def whole_model_state(
    module: nn.Module, placement: Placement, group: dist.ProcessGroup, keep: bool
) -> dict[str, Any]:
    """On rank 0 all parameters and buffers under their usual names; elsewhere nothing."""
    state = module.state_dict()
    return collect(state, {name: placement.owner(name) for name in state}, group, keep)


def load_model_part(
    module: nn.Module, state: Mapping[str, Any], placement: Placement, strict: bool
) -> None:
    """Take this rank's part of a whole network's state."""
    expected = module.state_dict()
    different = sorted(set(state) ^ set(expected))
    if strict and different:
        raise UserError(
            f"the checkpoint is of another network: they differ in {', '.join(different[:5])}; "
            "give one of this network"
        )
    held = {name: value for name, value in state.items() if placement.holds(name)}
    module.load_state_dict(held, strict=False)


def whole_optimizer_state(
    module: nn.Module,
    optimizer: Optimizer,
    placement: Placement,
    group: dist.ProcessGroup,
    keep: bool,
) -> dict[str, Any]:
    """On rank 0 the state of all parameters under their usual ids; elsewhere no state."""
    mine = optimizer.state_dict()
    owners = _owners(module, optimizer, placement)
    return {**mine, "state": collect(mine["state"], owners, group, keep)}


def optimizer_part(
    module: nn.Module, optimizer: Optimizer, state: dict[str, Any], placement: Placement
) -> dict[str, Any]:
    """The part of a whole optimizer's state that is for this rank's parameters."""
    names = _names(module, optimizer)
    held = {key: value for key, value in state["state"].items() if placement.holds(names[key])}
    return {**state, "state": held}


def collect(
    items: Mapping[Any, Any],
    owners: Mapping[Any, int],
    group: dist.ProcessGroup,
    keep: bool = True,
) -> dict[Any, Any]:
    """Bring items to rank 0 of a group, one by one: nothing but the result is ever held whole.

    Args:
        items: What this rank has, with tensors on any device; shards are put together first, for
            which the ranks that have the others call this as well.
        owners: For every key, in the same order on all ranks, the rank that has it.
        group: Ranks with a backend for the CPU, such as gloo.
        keep: Whether this rank's group is the one to bring them together.

    Returns:
        On rank 0 all items that their owners have, tensors on the CPU; elsewhere nothing.
    """
    rank = dist.get_rank(group)
    result: dict[Any, Any] = {}
    for key, owner in owners.items():
        item = None
        if rank == owner:
            item = gather(items.get(key), keep)
        if not keep:
            continue
        if owner != 0 and rank == owner:
            dist.send_object_list([item], group=group, group_dst=0)
        elif owner != 0 and rank == 0:
            box: list[Any] = [None]
            dist.recv_object_list(box, group=group, group_src=owner)
            item = box[0]
        if rank == 0 and item is not None:
            result[key] = item
    return result


def _owners(module: nn.Module, optimizer: Optimizer, placement: Placement) -> dict[int, int]:
    """For each parameter, by its id in the optimizer's state, the rank that holds it."""
    return {number: placement.owner(name) for number, name in _names(module, optimizer).items()}


def _names(module: nn.Module, optimizer: Optimizer) -> dict[int, str]:
    """The name of each parameter by its id in the optimizer's state."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {number: names[parameter] for number, parameter in enumerate(parameters)}
