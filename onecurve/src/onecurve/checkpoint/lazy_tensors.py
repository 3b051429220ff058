"""Tensors of a sharded checkpoint that are read when they are needed, in the layout needed.

A sharded checkpoint is read without its tensors: placeholders on the device "meta" carry where each
one is stored. Tensors of a single file are in memory already, and pass through.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .resume_changes import reject_other_optimizers

STORED = "stored"  # the attribute of a placeholder: (folder, name)


def model_state_here(state: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The network's state from a checkpoint of either format.

    Args:
        state: Of a sharded checkpoint only the shards of this process are read.
        local: The network's present state. A tensor is read in its layout there: as the same shard,
            or not at all if it is on the device "meta".
    """
    return {**state, **_read(state, local)}


def optimizer_states_here(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> list[dict[str, Any]]:
    """The same for all optimizers; those of another algorithm or number are rejected."""
    if not any(states):  # optimizers start fresh, as in Lightning; or it was trained without one
        return []
    reject_other_optimizers(states, optimizers)
    return [_optimizer_state_here(*pair) for pair in zip(states, optimizers, strict=True)]


def _optimizer_state_here(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    # In the order of their ids.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries: dict[int, Any] = {}
    for number, entry in state["state"].items():
        local = dict.fromkeys(entry, parameters[number]) if parameters else {}
        entries[number] = {**entry, **_read(entry, local)}
    return {**state, "state": entries}


def _read(state: Mapping[Any, Any], local: Mapping[Any, Any]) -> dict[Any, Tensor]:
    stored = {name: value for name, value in state.items() if hasattr(value, STORED)}
    if not stored:
        return {}
    # Only a sharded checkpoint has any.
    from .sharded import read_tensors

    return read_tensors(stored, local)
