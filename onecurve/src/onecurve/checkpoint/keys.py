"""Whether a checkpoint's keys are there, and of the kind that they are read as."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..compat.of_torch import tree_leaves
from ..errors import UserError

KINDS: dict[str, type] = {
    **dict.fromkeys(("config", "layout", "logs", "loops", "callbacks"), dict),
    **dict.fromkeys(("optimizer_states", "lr_schedulers"), list),
    **dict.fromkeys(("epoch", "global_step"), int),
}
TO_GO_ON = ("optimizer_states", "lr_schedulers", "loops", "callbacks", "epoch", "global_step")


def refuse_other_kinds(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Refuse what another program has put there under the same name.

    Raises:
        UserError: That names the first.
    """
    for key, kind in KINDS.items():
        value = checkpoint.get(key, kind())
        # Who has no optimizer may write {} for their list.
        if not isinstance(value, kind) and not (kind is list and value == {}):
            raise UserError(
                f"{path}: its {key} is no {kind.__name__}; give a file that a training run wrote, "
                "such as runs/.../checkpoints/best.ckpt"
            )


def refuse_weights_alone(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Refuse to go on from what is not enough for it.

    Raises:
        UserError: That names what is missing.
    """
    if missing := [key for key in TO_GO_ON if key not in checkpoint]:
        raise UserError(
            f"resume={path}: has no {', '.join(missing)} to go on with; begin anew with its "
            f"weights: init={path}"
        )


def leave_out_networks(checkpoint: dict[str, Any]) -> list[str]:
    """Leave networks and metrics among the hyperparameters out, of which ranks have parts.

    Returns:
        The names of what is left out.
    """
    given = checkpoint.get("hyper_parameters") or {}
    names = [
        name
        for name, value in given.items()
        if any(isinstance(leaf, nn.Module) for leaf in tree_leaves(value))
    ]
    if names:
        kept = {name: value for name, value in given.items() if name not in names}
        checkpoint["hyper_parameters"] = kept
    return names
