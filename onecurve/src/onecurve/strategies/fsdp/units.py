"""Which modules become units of FSDP: the parts whose parameters are gathered together.

The fewer parameters a unit has, the less memory is used at a time; the fewer units there are, the
fewer messages are sent.
"""

from collections import Counter
from collections.abc import Sequence

from torch import nn
from torch.distributed.fsdp import FSDPModule

from ...errors import UserError
from ..layers import CONTAINERS, called, find_layers


def find_units(module: nn.Module, wrap: str | Sequence[str], min_params: int) -> list[nn.Module]:
    """The modules to shard one by one, inner ones first. What is in none is left to the whole.

    Args:
        module: The task, or a stage of a pipeline.
        wrap: "layer" takes each layer (`find_layers`), or each child of a task that names no
            layers; "min_params" takes the smallest modules with so many parameters; a list takes
            all modules of these classes.
        min_params: For ``wrap="min_params"``.

    """
    if wrap == "layer":
        layers = find_layers(module)
        # Once each, however often it is used.
        units = list(
            dict.fromkeys(called(module.children()) if layers is None else layers.values())
        )
    elif wrap == "min_params":
        units = _by_size(module, min_params)
    else:
        # `modules()` yields parents before their children.
        units = [part for part in reversed(_parts(module)) if type(part).__name__ in wrap]
    units = list(dict.fromkeys(each for unit in units for each in _made_units(unit)))
    # A parameter is gathered by one unit alone: a tied one must not be used outside of it.
    uses = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    times = Counter(part for _, part in module.named_modules(remove_duplicate=False))

    def is_closed(unit: nn.Module) -> bool:
        inside = Counter(param for _, param in unit.named_parameters(remove_duplicate=False))
        return all(uses[param] == count * times[unit] for param, count in inside.items())

    return [unit for unit in units if _has_parameters(unit) and is_closed(unit)]


def _made_units(part: nn.Module) -> list[nn.Module]:
    """A part itself, or its parts where FSDP2 cannot make another class of it.

    Python does not let an object have another class whose bases lie otherwise in memory, as those
    of ``class Network(ABC, nn.Module)`` do. What such a part holds itself is left to the whole.
    """
    blank = object.__new__(type(part))
    try:
        object.__setattr__(blank, "__class__", type("Unit", (FSDPModule, type(part)), {}))
    except TypeError:
        return [unit for child in called(part.children()) for unit in _made_units(child)]
    return [part]


def last_units(module: nn.Module, units: Sequence[nn.Module]) -> list[nn.Module]:
    """The units that a backward pass asks for first: a head, and norms before it.

    Args:
        module: The task; one that names no layers has no last one.
        units: All of them.
    """
    layers = find_layers(module)
    order = [layer for layer in (layers or {}).values() if layer in units]
    last = order[-1:]
    for layer in reversed(order[:-1]):
        if any(parameter.ndim > 1 for parameter in layer.parameters()):
            break
        last.append(layer)
    return last


def _by_size(module: nn.Module, min_params: int) -> list[nn.Module]:
    units: list[nn.Module] = []

    def visit(part: nn.Module) -> int:
        """Collect units in a part; returns how many of its parameters are in none."""
        if isinstance(part, nn.MultiheadAttention):
            # It uses its output layer's parameters without calling that layer.
            left = sum(parameter.numel() for parameter in part.parameters())
        else:
            left = sum(parameter.numel() for parameter in part.parameters(recurse=False))
            left += sum(visit(child) for child in part.children())
        if left < min_params or isinstance(part, CONTAINERS):
            return left
        units.append(part)
        return 0

    for child in module.children():
        visit(child)
    return units


def check_wrap(module: nn.Module, wrap: str | Sequence[str]) -> None:
    """Refuse what names no units of a task.

    Raises:
        UserError: If `wrap` is none of what `find_units` takes, or a class that is not there.
    """
    if wrap in ("layer", "min_params"):
        return
    if isinstance(wrap, str):
        raise UserError(
            f"strategy.wrap={wrap}: must be layer, min_params or a list of class names, such as "
            "strategy.wrap=[Linear]; use strategy.wrap=layer"
        )
    classes = {type(part).__name__ for part in _parts(module)}
    for name in wrap:
        if name not in classes:
            raise UserError(
                f"strategy.wrap=[{','.join(wrap)}]: the task has no {name} with parameters; it "
                f"has {', '.join(sorted(classes))}, or use strategy.wrap=layer"
            )


def _parts(module: nn.Module) -> list[nn.Module]:
    return [
        part
        for part in module.modules()
        if part is not module and _has_parameters(part) and not isinstance(part, CONTAINERS)
    ]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
