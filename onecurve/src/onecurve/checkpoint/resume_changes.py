"""Settings that differ between a resumed run and the run that wrote the checkpoint.

States of optimizers and schedulers hold their arguments, which would undo a change. So learning
rates are replaced in the state before it is loaded, and other changes are rejected. A scheduler of
another length continues along its new curve: with more epochs PyTorch would make the next step with
the last rate of the shorter one, and OneCycleLR rejects every step after its end.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..errors import UserError
from ..optim.optimizers import KERNELS

# Learning rates in a parameter group, and in a scheduler.
RATES = ("lr", "initial_lr", "max_lr", "min_lr", "base_lrs", "_last_lr")


def apply_changes(checkpoint: dict[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Write settings that this run's configuration changes into a checkpoint; describe each change.

    Raises:
        UserError: If a setting cannot be changed in the middle of a run.
    """
    before, now = _settings(checkpoint.get("config") or {}), _settings(config)
    groups = [each for state in checkpoint["optimizer_states"] for each in state["param_groups"]]
    changes = []
    for key, old in before.items():
        new = now.get(key, old)
        if new == old:
            continue
        if key == "optimizer.lr" and old:
            # Groups may have rates of their own, which a scheduler has changed since.
            for holder in (*groups, *checkpoint["lr_schedulers"]):
                _scale_rates(holder, new / old)
            changes.append(
                f"{key}={new} (was {old}): all learning rates are multiplied by {new / old:.4g}"
            )
        elif (kernel := key.removeprefix("optimizer.")) in KERNELS:
            for group in groups:
                group[kernel] = new
        else:
            raise UserError(
                f"{key}={new}: the run was started with {old}, and a resumed run may change "
                "optimizer.lr and arguments of callbacks alone; leave it out, or start a new run "
                "from the weights: init=CHECKPOINT"
            )
    return changes


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a checkpoint's states depend on, by key; none of a plain script."""
    settings = {key: config[key] for key in ("seed",) if key in config}
    if config:
        settings["scheduler"] = (config.get("scheduler") or {}).get("_target_")
    for name in ("optimizer", "scheduler"):
        group = config.get(name) or {}
        settings |= {f"{name}.{key}": value for key, value in group.items()}
    return settings


def _scale_rates(holder: dict[str, Any], factor: float) -> None:
    """Multiply the learning rates of a parameter group, or of a scheduler and its parts."""
    for name in RATES:
        rate = holder.get(name)
        if isinstance(rate, list):
            holder[name] = [each * factor for each in rate]
        elif rate is not None:
            holder[name] = rate * factor
    for part in holder.get("_schedulers", ()):
        _scale_rates(part, factor)


# Keys of a parameter group that a scheduler sets.
SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas")
# Arguments of PyTorch's schedulers that follow from the length of a run.
LENGTHS = ("total_steps", "T_max", "T_0", "total_iters", "milestones", "_milestones")


def fit_to_length(
    checkpoint: dict[str, Any], schedulers: Sequence[Any], optimizers: Sequence[Optimizer]
) -> Iterator[str]:
    """Move schedulers whose curve has changed to the point of the new curve after the steps so far.

    A scheduler whose state does not show its length, such as a user's own, is left as it was saved;
    so is one whose new curve is shorter than the steps so far. The schedulers and optimizers are
    this run's, fresh; the states in the checkpoint are changed, each with a line.
    """
    states, saved = checkpoint.get("lr_schedulers", ()), checkpoint.get("optimizer_states", ())
    # `reject_other_optimizers` comes later: BaseFinetuning first adds parameter groups.
    if len(saved) != len(optimizers):
        return
    for state, scheduler in zip(states, schedulers, strict=False):
        steps = _steps(state)
        if steps is None:
            continue
        index = [optimizer is scheduler.optimizer for optimizer in optimizers].index(True)
        groups = saved[index]["param_groups"]
        if len(groups) != len(scheduler.optimizer.param_groups):
            continue
        if not _differs(state, scheduler) or steps > getattr(scheduler, "total_steps", steps):
            continue
        rate = groups[0]["lr"]
        _put(scheduler, steps, state, groups)
        yield (
            f"resume: {type(scheduler).__name__} continues along the curve of this run: "
            f"lr={float(groups[0]['lr']):.4g} (was {float(rate):.4g})"
        )


def _steps(state: Mapping[str, Any]) -> int | None:
    """The steps of a scheduler so far, if known; a ChainedScheduler's are those of its parts."""
    parts = state.get("_schedulers")
    steps: int | None = state.get("last_epoch", _steps(parts[0]) if parts else None)
    return steps


def _differs(state: Mapping[str, Any], scheduler: Any) -> bool:
    """Whether a scheduler was saved with another length; a LambdaLR, with another rate."""
    own = scheduler.state_dict()
    if any(key in state and key in own and state[key] != own[key] for key in LENGTHS):
        return True
    # A part that has not begun has computed no rate yet.
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
    """Step a fresh scheduler to the same step, and overwrite the saved state with its state."""
    with warnings.catch_warnings():
        # PyTorch warns that the optimizer has made no step.
        warnings.simplefilter("ignore")
        for _ in range(steps):
            scheduler.step()
    state |= scheduler.state_dict()
    for saved, group in zip(groups, scheduler.optimizer.param_groups, strict=True):
        saved |= {key: value for key, value in group.items() if key in SCHEDULED}


def reject_other_optimizers(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> None:
    """Reject the state of another algorithm: PyTorch would load it and fail in the first step."""
    if len(states) != len(optimizers) or not all(map(_is_of, states, optimizers)):
        here = ", ".join(type(each).__name__ for each in optimizers) or "none"
        raise UserError(
            f"optimizer: the checkpoint is of another one than {here}, or of other groups of "
            "parameters; give the optimizer that it was trained with, or start a new run from its "
            "weights: init=CHECKPOINT"
        )


def _is_of(state: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """Whether an optimizer has as many groups, and its arguments are those of the state."""
    groups = state["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        return False
    saved, here = (set(each[0]) if each else set() for each in (groups, optimizer.param_groups))
    # A newer release of PyTorch may have one more argument, and fills it in.
    return set(optimizer.defaults) <= saved or saved <= here
