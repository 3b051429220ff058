"""Bytes that a rank holds, by what they are for."""

from typing import Any


def local_bytes(value: Any) -> int:
    """Bytes that a tensor, or its shard, takes on this rank."""
    if not hasattr(value, "untyped_storage") or value.is_meta:
        return 0
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel() * local.element_size())


def held(trainer: Any, task: Any) -> dict[str, int]:
    """After a backward pass, before the next step clears its gradients."""
    states = trainer.optimizers[0].state.values()
    return {
        "parameters": sum(map(local_bytes, task.parameters())),
        "gradients": sum(local_bytes(each.grad) for each in task.parameters()),
        "optimizer": sum(local_bytes(value) for state in states for value in state.values()),
    }
