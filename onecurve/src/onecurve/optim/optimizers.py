"""Builds optimizers with a learning rate for each part of the network."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..compat.of_torch import does_not_unscale, local_shard, never_captured
from ..errors import UserError, in_short
from ..spelling import nearest

NamedParameters = Iterable[tuple[str, nn.Parameter] | nn.Parameter]
# Arguments that choose a kernel, and change no result: those of the run count, not a checkpoint's.
KERNELS = ("fused", "foreach", "capturable")


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
        options: every other argument of the algorithm.

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
    for key, value in options.items():  # PyTorch notices in its first step
        if isinstance(known[key].default, bool) and not isinstance(value, bool):
            such = f"optimizer.{key}=false"
            raise UserError(f"optimizer.{key}={value}: must be true or false, such as {such}")
    # Lists become tuples: a ListConfig in a parameter group could not be saved in a checkpoint.
    arguments = {
        key: tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for key, value in options.items()
    }
    groups = parameter_groups(named_parameters, lr, lr_scale)
    here = [each for group in groups for each in group["params"] if not each.is_meta]
    if arguments.get("fused") and not _fit_a_fused_kernel(here):
        arguments["fused"] = None
    try:
        optimizer: Optimizer = optimizer_class(groups, lr=lr, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"optimizer ({algorithm}): {error}") from error
    if arguments.get("fused"):
        _prepare_fused(optimizer)
    if not any(parameter.is_cuda for parameter in here):
        never_captured(optimizer)
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
        prefix = min(unused)
        # As many words of each name as the prefix has.
        parts = {".".join(name.split(".")[: prefix.count(".") + 1]): None for name in names}
        close = nearest(prefix, [*parts])
        hint = f"did you mean {close}?" if close else f"names are {', '.join(parts)}"
        raise UserError(f"optimizer.lr_scale.{prefix}: no parameter name begins with that; {hint}")
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


def _fit_a_fused_kernel(parameters: Iterable[Tensor]) -> bool:
    """Whether there are no views with gaps in memory, and no shards beside full tensors."""
    are_dense = all(
        torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        for parameter in parameters
        if parameter.is_leaf
    )
    return are_dense and len({isinstance(parameter, DTensor) for parameter in parameters}) <= 1


def _prepare_fused(optimizer: Optimizer) -> None:
    """Let gradients be clipped in mixed precision, and every memory layout give the same result.

    A fused optimizer would unscale gradients itself, after clipping; so Lightning rejects clipping
    with one, though nothing is scaled in bfloat16. PyTorch's kernels for the CPU ignore strides
    (torch 2.15): they would silently read a transposed gradient, or moments of a checkpoint in
    another memory format, in the wrong order.
    """
    does_not_unscale(optimizer)
    optimizer.register_step_pre_hook(_lay_out_gradients)
    optimizer.register_load_state_dict_post_hook(_lay_out_moments)


def _lay_out_gradients(
    optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Lay out gradients like their parameters, after the closure that computes them, if any."""
    closure = arguments[1] if len(arguments) > 1 else options.get("closure")
    with torch.enable_grad():
        loss = closure() if closure else None
    for parameter in _parameters(optimizer):
        if parameter.grad is not None:
            laid_out = _laid_out(parameter.grad, parameter)
            if laid_out is not parameter.grad:
                parameter.grad = laid_out
    return arguments[:1], {**options, "closure": (lambda: loss) if closure else None}


def _lay_out_moments(optimizer: Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = _laid_out(value, parameter)


def _laid_out(tensor: Tensor, parameter: Tensor) -> Tensor:
    if local_shard(tensor).stride() == local_shard(parameter).stride():
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
