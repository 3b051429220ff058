"""What hooks have frozen since a run began, for a resume.

The constructor, and the `setup` of callbacks such as BackboneFinetuning, freeze what a later epoch
trains; a resumed run does not come by that epoch again.
"""

from typing import Any

from torch import nn

from ..compat.of_torch import BatchNorm
from ..errors import some_of


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
    return [(name, part) for name, part in module.named_modules() if isinstance(part, BatchNorm)]
