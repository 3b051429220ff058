"""Settings that were changed for a run that goes on: a checkpoint's state would undo them.

Optimizers, schedules and callbacks keep their arguments in their state; so what it says of an
argument that has another value now is replaced, before it is loaded.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import UserError
from ..optim.fused import KERNELS

# Of a group of parameters, what a schedule derives from the learning rate.
LEARNING_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
OF_SCHEDULES = ("base_lrs", "_last_lr")


def apply_changes(checkpoint: dict[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Write settings that are others now into the states of a checkpoint.

    Args:
        checkpoint: Lightning's dictionary, with the configuration of the run that wrote it.
        config: The resolved configuration of this run.

    Returns:
        What is another from here on, each in some words.

    Raises:
        UserError: If a change cannot be made in the middle of a run.
    """
    before: Mapping[str, Any] = checkpoint.get("config") or {}
    _refuse(before, config)
    said = list(_optimizers(checkpoint, before, config))
    for key, old, new in _changed(before, config, "scheduler"):
        states = [state for state in checkpoint["lr_schedulers"] if state.get(key) == old]
        for state in states:
            state[key] = new
        said += [f"scheduler.{key}={new} (was {old})"] if states else []
    for name, callback in (config.get("callbacks") or {}).items():
        kind = str((callback or {}).get("_target_")).rpartition(".")[2]
        kind = kind.replace("BestAndLast", "ModelCheckpoint")  # the name under which its state is
        for key, old, new in _changed(before.get("callbacks"), config["callbacks"], name):
            for owner, state in (checkpoint.get("callbacks") or {}).items():
                # Lightning's name for a state begins with the class.
                if owner.partition("{")[0] == kind and state.get(key) == old:
                    state[key] = new
                    said.append(f"callbacks.{name}.{key}={new} (was {old})")
    return said


def _refuse(before: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    if not before:  # a plain script's checkpoint says nothing of it
        return
    old, new = ((each.get("scheduler") or {}).get("_target_") for each in (before, config))
    if old != new:
        raise UserError(
            f"scheduler: the run was begun with {old}, and {new} cannot take over "
            "from it; leave scheduler as it was, or start anew from the weights: init=CHECKPOINT"
        )
    if "seed" in before and before["seed"] != config.get("seed"):
        raise UserError(
            f"seed={config.get('seed')}: the run was begun with seed={before['seed']}, from which "
            "the order of its samples follows; leave it out, or start anew from the weights: "
            "init=CHECKPOINT"
        )


def _optimizers(
    checkpoint: dict[str, Any], before: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[str]:
    groups = [group for state in checkpoint["optimizer_states"] for group in state["param_groups"]]
    for key, old, new in _changed(before, config, "optimizer"):
        if key in KERNELS:
            continue
        if key == "lr" and old:
            # Groups may have rates of their own, and a schedule has made others of them.
            yield f"optimizer.lr={new} (was {old}): all learning rates go on times {new / old:.4g}"
            for holder in (*groups, *checkpoint["lr_schedulers"]):
                for name in (*LEARNING_RATES, *OF_SCHEDULES):
                    if name in holder:
                        holder[name] = _times(holder[name], new / old)
            continue
        changed = [group for group in groups if key in group and _plain(group[key]) == _plain(old)]
        for group in changed:
            group[key] = type(group[key])(new) if isinstance(new, list) else new
        if changed:
            yield f"optimizer.{key}={new} (was {old})"


def _changed(
    before: Mapping[str, Any] | None, config: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Any, Any]]:
    """Keys of a part of the configuration that have another value now, with both."""
    old, new = (before or {}).get(name), config.get(name)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key, value in new.items():
            if key in old and old[key] != value:
                yield key, old[key], value


def _times(value: Any, factor: float) -> Any:
    return [each * factor for each in value] if isinstance(value, list) else value * factor


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
