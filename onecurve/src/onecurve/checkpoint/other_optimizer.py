"""Whether a checkpoint's optimizers and schedules fit those that a run goes on with."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from ..errors import UserError, say

INSTEAD = (
    "give the optimizer that it was trained with, or start anew from its weights: init=CHECKPOINT"
)


def refuse_other_optimizers(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> None:
    """Refuse the state of other algorithms, which PyTorch would take and fail in the first step.

    Raises:
        UserError: That names what only one of them has.
    """
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


def fit_to_length(states: Sequence[dict[str, Any]], schedulers: Sequence[Any]) -> None:
    """Let a schedule that counts the steps of the whole run go on along the one of this run.

    Saved with it is how long the run was to be; with more epochs now it would end too early, and
    PyTorch's OneCycleLR refuses every step after its last.

    Args:
        states: Of the schedules, from a checkpoint; changed in place.
        schedulers: Those of this run, fresh.
    """
    for state, scheduler in zip(states, schedulers, strict=False):
        before, now = state.get("total_steps"), getattr(scheduler, "total_steps", None)
        if before is None or now is None or before == now:
            continue
        own = scheduler.state_dict()
        state |= {key: own[key] for key in ("total_steps", "_schedule_phases") if key in own}
        say(
            f"resume: {type(scheduler).__name__} was for {before} steps and goes on along the "
            f"curve of {now}"
        )
