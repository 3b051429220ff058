"""Schedules of learning rates that go on in a run of another length.

A checkpoint holds how long a schedule was to be, and the rate that it made for the next step. Both
are of the run that was saved: with more epochs now, PyTorch would make that step with the last rate
of the shorter curve, and OneCycleLR refuses every step after its end.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

# How PyTorch's schedules call their length, or what people derive from that of the run.
LENGTHS = ("total_steps", "T_max", "T_0", "total_iters", "milestones", "_milestones")


def fit_to_length(
    checkpoint: dict[str, Any], schedulers: Sequence[Any], optimizers: Sequence[Optimizer]
) -> Iterator[str]:
    """Put schedules that have another curve now where it stands after the steps that were made.

    One whose state does not tell, as it may be with a user's own, is left as it was saved; so is
    one that is to end before the steps that were made.

    Args:
        checkpoint: Lightning's dictionary; its states are changed in place.
        schedulers: Those of this run, fresh.
        optimizers: Those of this run, fresh.

    Yields:
        A line for each of them.
    """
    states = checkpoint.get("lr_schedulers")
    if not states:
        return
    saved = checkpoint["optimizer_states"]
    if len(saved) == len(optimizers):
        # Whether they are of one kind is for whoever loads them: a callback may add groups of
        # parameters first, as BaseFinetuning does.
        yield from _fitted(states, schedulers, saved, optimizers)


def _fitted(
    states: Sequence[dict[str, Any]],
    schedulers: Sequence[Any],
    saved: Sequence[dict[str, Any]],
    optimizers: Sequence[Optimizer],
) -> Iterator[str]:
    for state, scheduler in zip(states, schedulers, strict=False):
        steps, before = _steps(state), state.get("total_steps")
        place = [optimizer is scheduler.optimizer for optimizer in optimizers].index(True)
        groups = saved[place]["param_groups"]
        if len(groups) != len(scheduler.optimizer.param_groups):
            continue
        if not _differs(state, scheduler) or steps > getattr(scheduler, "total_steps", steps):
            continue
        rate = groups[0]["lr"]
        _put(scheduler, steps, state, groups)
        lengths = f"was for {before} steps and " if before else ""
        curve = f"the curve of {scheduler.total_steps}" if before else "the curve of this run"
        yield (
            f"resume: {type(scheduler).__name__} {lengths}goes on along {curve}: "
            f"lr={float(groups[0]['lr']):.4g} (was {float(rate):.4g})"
        )


def _steps(state: Mapping[str, Any]) -> int:
    """How many a schedule has made; ChainedScheduler leaves it to its parts to count."""
    return int(state["last_epoch"] if "last_epoch" in state else _steps(state["_schedulers"][0]))


def _differs(state: Mapping[str, Any], scheduler: Any) -> bool:
    """Whether a schedule was saved with another length; of functions, with another rate."""
    own = scheduler.state_dict()
    if any(key in state and key in own and state[key] != own[key] for key in LENGTHS):
        return True
    # A part that has not begun has made no rate yet.
    if isinstance(scheduler, LambdaLR) and state["last_epoch"] >= 0:
        rates = zip(scheduler.lr_lambdas, state["base_lrs"], state["_last_lr"], strict=True)
        for factor, base, rate in rates:
            if not isclose(base * factor(state["last_epoch"]), rate, abs_tol=1e-9 * float(base)):
                return True
    parts = zip(state.get("_schedulers", ()), getattr(scheduler, "_schedulers", ()), strict=False)
    return any(_differs(*part) for part in parts)


def _put(
    scheduler: Any, steps: int, state: dict[str, Any], groups: Sequence[dict[str, Any]]
) -> None:
    """Make the steps with a fresh schedule, and write what comes of them over what was saved."""
    own = scheduler.optimizer.param_groups
    with warnings.catch_warnings():
        # PyTorch wants a step of the optimizer before each.
        warnings.simplefilter("ignore")
        for _ in range(steps):
            scheduler.step()
    # An experiment may have found other learning rates than are configured.
    found = [
        saved["initial_lr"] / group["initial_lr"] if group["initial_lr"] else 1.0
        for saved, group in zip(groups, own, strict=True)
    ]
    state |= _times(scheduler.state_dict(), found)
    for saved, group, factor in zip(groups, own, found, strict=True):
        saved["lr"] = group["lr"] * factor
        if getattr(scheduler, "cycle_momentum", False):
            saved |= {key: group[key] for key in ("momentum", "betas") if key in group}


def _times(state: dict[str, Any], factors: Sequence[float]) -> dict[str, Any]:
    """The state of a schedule for other learning rates."""
    rates = {
        key: [rate * factor for rate, factor in zip(state[key], factors, strict=True)]
        for key in ("base_lrs", "_last_lr")
        if key in state
    }
    parts = {"_schedulers": [_times(part, factors) for part in state.get("_schedulers", ())]}
    return state | rates | (parts if "_schedulers" in state else {})
