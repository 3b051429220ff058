"""Builds optimizers with a learning rate for each part of the network."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..errors import UserError, in_short, nearest
from .fused import fuses, has_kernel

NamedParameters = Iterable[tuple[str, nn.Parameter] | nn.Parameter]


def build_optimizer(
    named_parameters: NamedParameters,
    *,
    algorithm: str,
    lr: float,
    lr_scale: Mapping[str, Any],
    **options: Any,
) -> Optimizer:
    """Build an optimizer of the parameters that require a gradient.

    Args:
        named_parameters: what `network.named_parameters()` returns, or without `lr_scale` also
            `network.parameters()`.
        algorithm: dotted name of the class, such as `torch.optim.AdamW`.
        lr: learning rate.
        lr_scale: factors of the learning rate by prefixes of parameter names, for
            instance `{backbone: 0.1}`. The longest matching prefix counts. Null means no factor.
        options: every other argument of the algorithm; `fused="auto"` uses its fused kernel if
            there is one for these parameters.

    Raises:
        UserError: a value that the algorithm rejects, a name in `lr_scale` that matches no
            parameter, or a network with nothing to train.
    """
    try:
        optimizer_class = resolve_name(algorithm)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"optimizer.algorithm={algorithm}: {in_short(error)}; name a class, such as "
            "optimizer.algorithm=torch.optim.AdamW"
        ) from error
    known = inspect.signature(optimizer_class).parameters
    if unknown := [key for key in options if key not in known]:
        close = nearest(unknown[0], sorted(known))
        without = " ".join(f"'~optimizer.{key}'" for key in unknown)
        hint = f"did you mean optimizer.{close}?" if close else f"leave it out: {without}"
        raise UserError(f"optimizer.{unknown[0]}: {algorithm} has no such argument; {hint}")
    for key, value in options.items():
        usual = known[key].default
        if isinstance(usual, bool) and not isinstance(value, bool):
            raise UserError(
                f"optimizer.{key}={value}: must be true or false; try "
                f"optimizer.{key}={str(usual).lower()}"
            )
    # Lists become tuples: a ListConfig in a parameter group could not be saved in a checkpoint.
    arguments = {
        key: tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for key, value in options.items()
    }
    groups = parameter_groups(named_parameters, lr, lr_scale)
    parameters = [parameter for group in groups for parameter in group["params"]]
    is_free = arguments.get("fused") == "auto"
    if is_free:
        del arguments["fused"]
        if fuses(optimizer_class, parameters, {"lr": lr, **arguments}):
            arguments["fused"] = True
    try:
        optimizer: Optimizer = optimizer_class(groups, lr=lr, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer ({algorithm}): {error}") from error
    is_asked = arguments.get("fused") and not is_free
    if is_asked and not has_kernel(optimizer_class, parameters, {"lr": lr, **arguments}):
        raise UserError(
            f"optimizer.fused=true: {algorithm} has no fused kernel for parameters such as these; "
            "use optimizer.fused=auto"
        )
    optimizer.may_unfuse = is_free  # type: ignore[attr-defined]
    return optimizer


def parameter_groups(
    named_parameters: NamedParameters, lr: float, lr_scale: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Group parameters by their learning rate, in the network's order; no group is empty."""
    scales = dict(_flatten(lr_scale))
    unused = set(scales)
    names: list[str] = []
    groups: dict[str, dict[str, Any]] = {}
    for each in named_parameters:
        name, parameter = each if isinstance(each, tuple) else ("", each)
        names.append(name)
        fitting = [prefix for prefix in scales if name == prefix or name.startswith(f"{prefix}.")]
        unused.difference_update(fitting)
        if not parameter.requires_grad:
            continue
        prefix = max(fitting, key=len, default="")
        # Lightning's LearningRateMonitor shows a group by its name.
        group = groups.setdefault(
            prefix, {"params": [], "lr": lr * scales.get(prefix, 1), "name": prefix or "rest"}
        )
        group["params"].append(parameter)
    if unused:
        raise UserError(
            f"optimizer.lr_scale.{min(unused)}: no parameter name begins with that; "
            f"{_nearest(min(unused), names)}"
        )
    if not groups:
        raise UserError(
            "optimizer: no parameter of the network requires a gradient: there is nothing to train"
        )
    if not scales:
        del groups[""]["name"]
    return list(groups.values())


def _flatten(lr_scale: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, float]]:
    """Yield ("backbone.layer4_1", 0.1), also for {backbone: {layer4_1: 0.1}}."""
    for key, value in lr_scale.items():
        name = f"{parent}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, int | float) and value >= 0:
            yield name, value
        elif value is not None:
            raise UserError(
                f"optimizer.lr_scale.{name}={value}: must be a factor of the learning rate, "
                f"0 or more; try optimizer.lr_scale.{name}=0.1"
            )


def _nearest(prefix: str, names: Sequence[str]) -> str:
    prefixes = {
        ".".join(parts[:n])
        for parts in (name.split(".") for name in names)
        for n in range(1, len(parts) + 1)
    }
    if close := get_close_matches(prefix, sorted(prefixes), n=3):
        return f"did you mean {', '.join(close)}?"
    parts = dict.fromkeys(name.split(".")[0] for name in names)
    return f"the parts of this network are {', '.join(parts)}"
