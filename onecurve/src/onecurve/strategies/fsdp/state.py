"""Gathers full tensors from the ranks' shards, and shards full tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer

from ...compat.of_torch import tree_map_only


def gather(state: Any, keep: bool) -> Any:
    """Gather full tensors, one after the other. All ranks must call this.

    Returns:
        The same containers with full tensors on the CPU; an empty dictionary if not `keep`.
    """

    def full(tensor: Tensor) -> Tensor | None:
        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            # Axis by axis from the outermost, which FSDP2 has sharded last: PyTorch warns if
            # several axes are gathered at once.
            for axis in range(1, tensor.device_mesh.ndim):
                placements = [*[Replicate()] * axis, *tensor.placements[axis:]]
                tensor = tensor.redistribute(placements=placements)
            tensor = tensor.full_tensor()
        return tensor.cpu() if keep else None

    gathered = tree_map_only(Tensor, full, state)
    return gathered if keep else {}


def cut_like(full: Any, like: Any) -> Any:
    """Shard a tensor that every rank has in full like another one, without communication.

    Anything else, even a DTensor, is returned as it is; so is the tensor if `like` is not sharded.
    """
    if not isinstance(like, DTensor) or not isinstance(full, Tensor) or isinstance(full, DTensor):
        return full
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)


def cut_optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Shard the ``state_dict()`` that the same optimizer has with unsharded parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def cut(value: Any, parameter: Tensor) -> Any:
        # Only tensors of the parameter's shape are sharded, not the count of steps, for example.
        is_alike = isinstance(value, Tensor) and value.shape == parameter.shape
        return cut_like(value, parameter) if is_alike else value

    with torch.no_grad():
        shards = {
            number: {key: cut(value, parameters[number]) for key, value in entry.items()}
            for number, entry in state["state"].items()
        }
    return {**state, "state": shards}
