"""Builds optimizers with a learning rate for each part of the network, and fused where possible."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..compat.of_torch import does_not_unscale, local_shard, never_captured, tree_map_only
from ..errors import UserError, in_short, nearest

NamedParameters = Iterable[tuple[str, nn.Parameter] | nn.Parameter]
# Arguments that choose a kernel, and change no result: they are not restored from a checkpoint.
KERNELS = ("fused", "foreach", "capturable")
UNSUPPORTED = (NotImplementedError, RuntimeError, TypeError, ValueError)


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
    if is_asked and not _has_kernel(optimizer_class, parameters, {"lr": lr, **arguments}):
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


# Fused kernels: one that updates all parameters, where there is one for them.
#
# The kernels for the CPU ignore strides (PyTorch 2.15): a gradient with other strides than its
# parameter, such as a transposed one, would silently be read in the wrong order.
# `make_contiguous` corrects that, and handles what else a fused kernel does not support.


def fuses(kind: type[Optimizer], parameters: Iterable[Tensor], options: Mapping[str, Any]) -> bool:
    """Whether to use an optimizer's fused kernel for these parameters.

    Args:
        kind: The class of the optimizer.
        parameters: All full, or all sharded; those on the device "meta" are another rank's.
        options: The other arguments of the optimizer.
    """
    here = _here(parameters)
    sharded = {isinstance(each, DTensor) for each in here}
    if len(sharded) != 1 or options.get("foreach") or not all(_is_plain(each) for each in here):
        return False
    return _has_kernel(kind, here, options)


def _has_kernel(
    kind: type[Optimizer], parameters: Iterable[Tensor], options: Mapping[str, Any]
) -> bool:
    """Whether an optimizer has a fused kernel for these parameters, tried on small copies."""
    if "fused" not in inspect.signature(kind).parameters:
        return False
    kinds = {_likeness(each): each for each in _here(parameters)}
    if not kinds:
        return True
    twins = [_twin(each) for each in kinds.values()]
    try:
        kind(twins, **{**options, "fused": True}).step()
    except UNSUPPORTED:
        return False
    return True


def _here(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter for parameter in parameters if not parameter.is_meta]


def _likeness(tensor: Tensor) -> tuple[Any, ...]:
    """The properties of a tensor that decide whether a kernel supports it."""
    spread = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
    return (tensor.dtype, tensor.device, tensor.ndim, spread)


def _twin(tensor: Tensor) -> nn.Parameter:
    """A parameter with one element and a gradient, like a tensor."""
    small: Tensor = torch.zeros([1] * tensor.ndim, dtype=tensor.dtype, device=tensor.device)
    if isinstance(tensor, DTensor):
        small = DTensor.from_local(small, tensor.device_mesh, tensor.placements, run_check=False)
    twin = nn.Parameter(small)
    twin.grad = torch.zeros_like(twin)
    return twin


def _unfuse(optimizer: Optimizer) -> None:
    """Switch to the default kernels."""
    for group in optimizer.param_groups:
        if "fused" in group:
            group["fused"] = None
    does_not_unscale(optimizer)


def leave_unscaling(optimizer: Optimizer, is_scaled: bool) -> None:
    """Let gradients be clipped, and seen by hooks, unscaled.

    A fused optimizer unscales them itself, after clipping; so Lightning rejects clipping with one,
    though nothing is scaled in bfloat16.

    Args:
        optimizer: Any; one for which the user asked for the fused kernel keeps it.
        is_scaled: Whether a gradient scaler is used, as in float16.
    """
    if not is_scaled:
        does_not_unscale(optimizer)
    elif getattr(optimizer, "may_unfuse", False):
        _unfuse(optimizer)


def prepare_kernels(optimizer: Optimizer, device: torch.device, is_scaled: bool) -> None:
    """Before a fit: what `keep_kernels` and `leave_unscaling` say; nothing on a CPU is captured."""
    keep_kernels(optimizer)
    leave_unscaling(optimizer, is_scaled)
    if device.type == "cpu":
        never_captured(optimizer)


def keep_kernels(optimizer: Optimizer) -> None:
    """Keep a run's own choice of kernels when it loads a checkpoint of another."""
    if not getattr(optimizer, "keeps_kernels", False):
        optimizer.keeps_kernels = True  # type: ignore[attr-defined]
        optimizer.register_load_state_dict_pre_hook(_with_own_kernels)


def _with_own_kernels(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
    groups, own = state["param_groups"], optimizer.param_groups
    if len(groups) != len(own):
        return None
    kept = [
        {**group, **{key: mine[key] for key in KERNELS if key in mine}}
        for group, mine in zip(groups, own, strict=True)
    ]
    moments = state["state"]
    if any(group.get("fused") for group in kept):
        moments = tree_map_only(Tensor, Tensor.contiguous, moments)
    return {**state, "state": moments, "param_groups": kept}


def make_contiguous(optimizer: Optimizer) -> None:
    """Make gradients contiguous for a fused kernel, or switch to the default kernels.

    Called between the backward pass and the step.
    """
    for group in optimizer.param_groups:
        if not group.get("fused"):
            continue
        trained: list[Any] = [p for p in _here(group["params"]) if p.grad is not None]
        if not _is_fit(trained, optimizer):
            _unfuse(optimizer)
            return
        for parameter in trained:
            if not local_shard(parameter.grad).is_contiguous():
                parameter.grad = parameter.grad.contiguous()


def _is_fit(parameters: list[Tensor], optimizer: Optimizer) -> bool:
    if not all(_is_plain(each) and not _is_sparse(each.grad) for each in parameters):
        return False
    # SGD's kernel needs momentum of all or of none; a layer that was just unfrozen has none yet.
    states = [optimizer.state.get(each) or {} for each in parameters]
    return len({state.get("momentum_buffer") is None for state in states}) <= 1


def _is_plain(parameter: Tensor) -> bool:
    return local_shard(parameter).is_contiguous()


def _is_sparse(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.layout is not torch.strided
