"""How a tensor group cuts the layers of a task: the plan that training takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from ..strategies.tensor.plan import find_plan


def tensor_plan(
    task: LightningModule, layers: Mapping[str, nn.Module], kinds: Sequence[Any]
) -> dict[str, str]:
    """The style of each module that is cut, by its full dotted name; none if nothing is.

    Args:
        task: Of which a method ``tensor_plan()`` may say it, or its network's.
        layers: In order and by name.
        kinds: What equal layers have in common: to find a plan, layers are tried out, and of equal
            ones the first alone.
    """
    if any(callable(getattr(part, "tensor_plan", None)) for part in task.modules()):
        return find_plan(task, layers, None)
    first: dict[Any, str] = {}
    for name, kind in zip(layers, kinds, strict=True):
        first.setdefault(kind, name)
    found = find_plan(task, {name: layers[name] for name in first.values()}, None)
    if any(name in layers for name in found):
        # Pairs that span layers are not told by what a layer is.
        return find_plan(task, layers, None)
    plan = {}
    for name, kind in zip(layers, kinds, strict=True):
        for module, style in found.items():
            if module == first[kind] or module.startswith(f"{first[kind]}."):
                plan[name + module.removeprefix(first[kind])] = style
    return plan
