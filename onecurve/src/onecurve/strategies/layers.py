"""Finds the ordered layers of a network, between which it can be split.

A task defines them by one nn.Sequential, or by a method ``layers()`` that returns them.
"""

from collections import Counter
from collections.abc import Iterable

from torch import nn

# Modules that only hold others and are never called.
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def find_layers(module: nn.Module) -> dict[str, nn.Module] | None:
    """The layers whose composition is ``module.forward``, in order, by their dotted names.

    These are the layers that ``module.layers()`` returns if there is such a method, else the
    elements of the one nn.Sequential that holds all of the module's parameters. A nested
    nn.Sequential is flattened. A layer that is used several times appears once per use, each time
    under another name.

    Returns:
        None if the module defines no order.
    """
    layers = getattr(module, "layers", None)
    if isinstance(layers, nn.Sequential | nn.ModuleList):
        sequence: list[nn.Module] = list(layers)
    elif callable(layers):
        sequence = list(layers())
        if not all(isinstance(each, nn.Module) for each in sequence):
            return None  # a method of that name for something else
    else:
        parents = [each for each in module.children() if next(each.parameters(), None) is not None]
        if len(parents) != 1 or type(parents[0]) is not nn.Sequential:
            return None
        sequence = [parents[0]]
    names: dict[nn.Module, list[str]] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        names.setdefault(part, []).append(name)
    used: Counter[nn.Module] = Counter()
    found: dict[str, nn.Module] = {}
    for position, layer in enumerate(opened(sequence)):
        paths = names.get(layer, [])
        use = used[layer]
        found[paths[use] if use < len(paths) else f"layers()[{position}]"] = layer
        used[layer] += 1
    return found


def opened(sequence: list[nn.Module]) -> list[nn.Module]:
    """Flatten nested nn.Sequentials."""
    flat: list[nn.Module] = []
    for layer in sequence:
        flat += opened(list(layer)) if type(layer) is nn.Sequential else [layer]
    return flat


def called(children: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules themselves, but the elements of a container that is never called."""
    layers: list[nn.Module] = []
    for child in children:
        layers += called(child.children()) if isinstance(child, CONTAINERS) else [child]
    return layers
