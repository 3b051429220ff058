"""Fused optimizers: one kernel that updates all parameters, where there is one for them.

The kernels for the CPU ignore strides (PyTorch 2.15): a gradient with other strides than its
parameter, such as a transposed one, would silently be read in the wrong order.
`make_contiguous` corrects that, and handles what else a fused kernel does not support.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..compat.of_torch import does_not_unscale, local_shard, tree_map_only

# Arguments that choose a kernel, and change no result: they are not restored from a checkpoint.
KERNELS = ("fused", "foreach", "capturable")
UNSUPPORTED = (NotImplementedError, RuntimeError, TypeError, ValueError)


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
    return has_kernel(kind, here, options)


def has_kernel(
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


def unfuse(optimizer: Optimizer) -> None:
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
        unfuse(optimizer)


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
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not _is_fit(trained, optimizer):
            unfuse(optimizer)
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
