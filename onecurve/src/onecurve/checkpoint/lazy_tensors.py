"""Tensors of a checkpoint that are read when they are needed.

A sharded checkpoint is read without its tensors: each stands there without memory, on the device
"meta", and carries where it is stored. Those of one file are there at once, and pass through.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .resume_changes import refuse_other_optimizers

STORED = "stored"
"""The attribute of such a tensor: (folder, name)."""


def model_state_here(state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The network's state out of a checkpoint of either format.

    Args:
        state: Of a sharded checkpoint only the part that this process holds is read.
        own: The network's present state. A tensor is read in the layout that it has here: a shard
            of it, or nothing if it is on the device "meta".
    """
    return {**state, **_read(state, own)}


def optimizer_state_here(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """The same for an optimizer, whose parameters stand in the order of their ids."""
    entries: dict[int, Any] = {}
    for key, entry in state["state"].items():
        own = dict.fromkeys(entry, parameters[key]) if parameters else {}
        entries[key] = {**entry, **_read(entry, own)}
    return {**state, "state": entries}


def optimizer_states_here(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> list[dict[str, Any]]:
    """The same for all optimizers.

    Raises:
        UserError: If they are of another kind, or number.
    """
    if not states:  # Lightning's to go on with: the optimizers begin anew
        return []
    refuse_other_optimizers(states, optimizers)
    return [
        optimizer_state_here(
            state, [parameter for group in optimizer.param_groups for parameter in group["params"]]
        )
        for state, optimizer in zip(states, optimizers, strict=True)
    ]


def _read(state: Mapping[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Tensor]:
    stored = {name: value for name, value in state.items() if hasattr(value, STORED)}
    if not stored:
        return {}
    # Only a sharded checkpoint has any.
    from .sharded.shards import read_tensors

    return read_tensors(stored, own)
