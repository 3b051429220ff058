"""Whole tensors out of the ranks' shards, and each rank's shard out of whole tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer

from ...compat.of_torch import tree_map_only


def gather(state: Any, keep: bool) -> Any:
    """Put shards together, one tensor after the other. All ranks must call this.

    Args:
        state: Containers of tensors, sharded or not, on any device.
        keep: Whether this rank needs the result.

    Returns:
        The same containers with whole tensors on the CPU; an empty dictionary if not `keep`.
    """

    def whole(tensor: Tensor) -> Tensor | None:
        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            tensor = _whole(tensor)
        return tensor.cpu() if keep else None

    gathered = tree_map_only(Tensor, whole, state)
    return gathered if keep else {}


def _whole(shard: DTensor) -> Tensor:
    # Axis by axis, from the outermost, which FSDP2 cut last: at once, PyTorch warns of several.
    for axis in range(shard.device_mesh.ndim - 1):
        placements = [
            Replicate() if number <= axis else placement
            for number, placement in enumerate(shard.placements)
        ]
        shard = shard.redistribute(placements=placements)
    return shard.full_tensor()


def cut_like(whole: Any, like: Any) -> Any:
    """This rank's shard of a whole tensor, sharded as another one is. Sends nothing.

    Args:
        whole: A tensor that every rank has, or anything else; what is a shard already stays so.
        like: The tensor to imitate; where it is not sharded, `whole` is returned.
    """
    if not isinstance(like, DTensor) or not isinstance(whole, Tensor) or isinstance(whole, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def cut_optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's whole state cut into this rank's shards.

    Args:
        state: What ``state_dict()`` of the same optimizer returned where nothing was sharded.
        optimizer: The optimizer of the sharded parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def cut(value: Any, parameter: Tensor) -> Any:
        # Only what has a number for each of the parameter's: not a count of steps.
        is_alike = isinstance(value, Tensor) and value.shape == parameter.shape
        return cut_like(value, parameter) if is_alike else value

    with torch.no_grad():
        shards = {
            number: {key: cut(value, parameters[number]) for key, value in entry.items()}
            for number, entry in state["state"].items()
        }
    return {**state, "state": shards}
