"""What an epoch has logged and counted so far, so that a resume inside it counts the whole epoch.

Each rank that sees other samples has sums of its own: of what was logged, and in the states of the
task's torchmetrics. A checkpoint holds those of all ranks. As many ranks take up their own again;
any other number the sums over all. Beside it, what hooks have frozen since the run began: the
constructor, and the `setup` of callbacks such as BackboneFinetuning, freeze what a later epoch
trains, and a resumed run does not come by that epoch again.
"""

from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.data import (
    dim_zero_cat,
    dim_zero_max,
    dim_zero_mean,
    dim_zero_min,
    dim_zero_sum,
)

from ..compat.of_lightning import (
    Logged,
    log_after,
    logged_in_epoch,
    metrics_of,
    set_states,
)
from ..compat.of_torch import BatchNorm, reductions_of, tree_map_only
from ..errors import some_of


def epoch_sums(trainer: Trainer) -> list[dict[str, Any]]:
    """What each rank with other samples has, as plain data. All ranks call this."""
    metrics = {
        name: {"states": metric.metric_state, "updates": metric.update_count}
        for name, metric in metrics_of(trainer.lightning_module).items()
    }
    here = {"logged": logged_in_epoch(trainer), "metrics": metrics}
    strategy: Any = trainer.strategy
    here = tree_map_only(Tensor, lambda value: value.detach().cpu(), here)
    of_ranks: list[dict[str, Any]] = strategy.gather_from_replicas(here)
    return of_ranks


def restore_sums(trainer: Trainer, saved: list[dict[str, Any]]) -> str | None:
    """Go on from what `epoch_sums` returned; the line for what cannot be shared by other ranks."""
    strategy: Any = trainer.strategy
    rank, size = strategy.data_parallel_rank, strategy.data_parallel_size
    is_alike = len(saved) == size
    logged = [each["logged"] for each in saved]
    log_after(trainer, logged[rank] if is_alike else _shared(logged, rank))
    left_out = []
    modules = dict(trainer.lightning_module.named_modules())
    for name in dict.fromkeys(name for each in saved for name in each["metrics"]):
        metric, entries = modules.get(name), [each["metrics"].get(name) for each in saved]
        if not isinstance(metric, Metric):
            continue
        if is_alike:
            if (entry := entries[rank]) is not None:
                set_states(metric, entry["states"], entry["updates"])
            continue
        states = _states(metric, [entry["states"] for entry in entries if entry], rank, size)
        if states is None:
            left_out.append(name)
        else:
            set_states(metric, states, max(entry["updates"] for entry in entries if entry))
    if not left_out:
        return None
    return (
        f"{some_of(left_out)}: counts the rest of this epoch alone, because its states cannot be "
        f"shared by another number of ranks than {len(saved)}"
    )


OF_VALUES = {"max": torch.maximum, "min": torch.minimum}
# With which a reduction of values changes nothing.
NEUTRAL = {"sum": 0.0, "max": -torch.inf, "min": torch.inf}


def _shared(of_ranks: list[Logged], rank: int) -> Logged:
    """What all ranks had logged, on the first of now; on the others nothing, of the same type."""
    shared: Logged = {}
    for logged in of_ranks:
        for key, entry in logged.items():
            if key not in shared:
                shared[key] = entry
                continue
            add = OF_VALUES.get(entry["reduce_fx"], torch.add)
            both = [(name, shared[key]["state"][name], v) for name, v in entry["state"].items()]
            shared[key] = {**entry, "state": {name: add(a, b) for name, a, b in both}}
    if rank == 0:
        return shared
    others = {key: entry for key, entry in shared.items() if not entry["sync"][1]}
    return {key: {**entry, "state": _nothing(entry)} for key, entry in others.items()}


def _nothing(entry: dict[str, Any]) -> dict[str, Tensor]:
    """The state in which a value changes nothing in the reduction."""
    neutral = NEUTRAL.get(entry["reduce_fx"], 0.0)
    zeros = {name: torch.zeros_like(value) for name, value in entry["state"].items()}
    if "value" in zeros and neutral:
        zeros["value"] = torch.full_like(zeros["value"], neutral)
    return zeros


def _states(
    metric: Metric, of_ranks: list[dict[str, Any]], rank: int, size: int
) -> dict[str, Any] | None:
    """This rank's part of a metric's states of other ranks; None if they cannot be divided."""
    states: dict[str, Any] = {}
    for name, fx in reductions_of(metric).items():
        values = [each[name] for each in of_ranks]
        if fx is dim_zero_cat:
            lists = [value if isinstance(value, list) else [value] for value in values]
            parts = [state for each in lists for state in each]
            full = torch.cat([state if state.ndim else state[None] for state in parts])
            share = torch.tensor_split(full, size)[rank]
            states[name] = share if isinstance(values[0], Tensor) else [share]
        elif fx is dim_zero_sum:
            default = torch.zeros_like(values[0])
            states[name] = default if rank else torch.stack(values).sum(0)
        elif fx in (dim_zero_max, dim_zero_min, dim_zero_mean):
            states[name] = fx(torch.stack(values))
        else:
            return None
    return states


def frozen_parts(module: nn.Module) -> dict[str, list[str]]:
    """The parameters that are not trained, and the layers whose statistics do not move."""
    return {
        "parameters": [n for n, each in module.named_parameters() if not each.requires_grad],
        "statistics": [n for n, each in _layers(module) if not each.track_running_stats],
    }


def freeze_alike(module: nn.Module, frozen: dict[str, list[str]]) -> str | None:
    """Freeze the same parts and no others; describe what that changes."""
    changed = []
    for name, layer in _layers(module):
        layer.track_running_stats = name not in frozen["statistics"]
    for name, parameter in module.named_parameters():
        if parameter.requires_grad is (name in frozen["parameters"]):
            parameter.requires_grad_(not parameter.requires_grad)
            changed.append(name)
    if not changed:
        return None
    return (
        f"{some_of(changed)}: frozen or trained as when the checkpoint was written; to begin with "
        "what the task freezes now, start a new run from the weights: init=CHECKPOINT"
    )


def _layers(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, layer) for name, layer in module.named_modules() if isinstance(layer, BatchNorm)]
