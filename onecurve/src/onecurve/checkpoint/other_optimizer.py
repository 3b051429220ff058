"""Whether a checkpoint's optimizers fit those that a run goes on with."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from ..errors import UserError

INSTEAD = (
    "give the optimizer that it was trained with, or start anew from its weights: init=CHECKPOINT"
)


def refuse_other_optimizers(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> None:
    """Refuse the state of other algorithms, which PyTorch would take and fail in the first step.

    A checkpoint without any is Lightning's to go on with: the optimizers begin anew.

    Raises:
        UserError: That names what only one of them has.
    """
    if not states:
        return
    if len(states) != len(optimizers):
        raise UserError(
            f"optimizer: the checkpoint has the state of {len(states)}, and there are "
            f"{len(optimizers)} here; {INSTEAD}"
        )
    for state, optimizer in zip(states, optimizers, strict=True):
        name = type(optimizer).__name__
        groups, own = state["param_groups"], optimizer.param_groups
        if len(groups) != len(own):
            raise UserError(
                f"optimizer: the checkpoint has {len(groups)} groups of parameters, and {name} has "
                f"{len(own)} here; {INSTEAD}"
            )
        given, here = (set(group[0]) if group else set() for group in (groups, own))
        # A newer release of PyTorch may have an argument more, and fills it in.
        missing, other = sorted(set(optimizer.defaults) - given), sorted(given - here)
        if missing and other:
            raise UserError(
                f"optimizer: the checkpoint is of another than {name}: it has "
                f"{', '.join(other[:3])}, and no {', '.join(missing[:3])}; {INSTEAD}"
            )
