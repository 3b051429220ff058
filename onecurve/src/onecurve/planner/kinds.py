"""Which layers are equal: they are looked at once."""

from collections.abc import Mapping
from typing import Any

from torch import nn


def within(layer: str, plan: Mapping[str, str]) -> dict[str, str]:
    """The styles of a layer's modules by their names within it."""
    found = {}
    for name, style in plan.items():
        if name == layer:
            found[""] = style
        elif name.startswith(f"{layer}."):
            found[name.removeprefix(f"{layer}.")] = style
    return found


def kinds_of(layers: Mapping[str, nn.Module]) -> list[Any]:
    """What equal layers have in common, cut in no way."""
    counted: dict[int, str] = {}
    return [kind_of(name, layer, {}, counted) for name, layer in layers.items()]


def kind_of(
    name: str, layer: nn.Module, styles: Mapping[str, str], counted: dict[int, str]
) -> tuple[Any, ...]:
    """What two layers have in common that do the same with data of the same shape."""
    parameters = []
    for path, parameter in layer.named_parameters():
        owner = counted.setdefault(id(parameter), name)
        about = (path, tuple(parameter.shape), parameter.dtype, parameter.requires_grad)
        parameters.append((*about, owner == name))
    plain = (int, float, bool, str)
    settings = [
        (path, key, value)
        for path, part in layer.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, plain) and not key.startswith("__")
    ]
    return (str(layer), tuple(parameters), tuple(settings), tuple(styles.items()))
