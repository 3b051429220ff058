"""Fused optimizers: one kernel that updates all parameters, where there is one for them.

Those for the CPU go through memory as it lies (PyTorch 2.15): a gradient that lies otherwise than
its parameter, as a transposed one does, would be taken for other numbers in silence. `tidied` mends
that, and what else a fused kernel cannot take.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..compat.of_torch import does_not_unscale, local_shard, tree_map_only

# How a step is computed, not what it computes: no matter of a checkpoint.
KERNELS = ("fused", "foreach", "capturable")
REFUSALS = (NotImplementedError, RuntimeError, TypeError, ValueError)


def fuses(kind: type[Optimizer], parameters: Iterable[Tensor], options: Mapping[str, Any]) -> bool:
    """Whether to let an optimizer update such parameters by a fused kernel.

    Args:
        kind: Its class.
        parameters: What it is to update, all of them whole or all sharded; those without memory
            are another rank's.
        options: Its other arguments.
    """
    here = _here(parameters)
    sharded = {isinstance(each, DTensor) for each in here}
    if len(sharded) != 1 or options.get("foreach") or not all(_is_plain(each) for each in here):
        return False
    return has_kernel(kind, here, options)


def has_kernel(
    kind: type[Optimizer], parameters: Iterable[Tensor], options: Mapping[str, Any]
) -> bool:
    """Whether an optimizer has a fused kernel for such parameters: it is tried on others alike.

    PyTorch shards a step of Adam's kernel, but not one of SGD's or Adagrad's (2.15).
    """
    if "fused" not in inspect.signature(kind).parameters:
        return False
    kinds = {_likeness(each): each for each in _here(parameters)}
    if not kinds:
        return True
    twins = [_twin(each) for each in kinds.values()]
    try:
        kind(twins, **{**options, "fused": True}).step()
    except REFUSALS:
        return False
    return True


def _here(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter for parameter in parameters if not parameter.is_meta]


def _likeness(tensor: Tensor) -> tuple[Any, ...]:
    """What a kernel may mind: two tensors of the same are taken, or refused, alike."""
    spread = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
    return (tensor.dtype, tensor.device, tensor.ndim, spread)


def _twin(tensor: Tensor) -> nn.Parameter:
    """A parameter of one number, with a gradient."""
    small: Tensor = torch.zeros([1] * tensor.ndim, dtype=tensor.dtype, device=tensor.device)
    if isinstance(tensor, DTensor):
        small = DTensor.from_local(small, tensor.device_mesh, tensor.placements, run_check=False)
    twin = nn.Parameter(small)
    twin.grad = torch.zeros_like(twin)
    return twin


def unfuse(optimizer: Optimizer) -> None:
    """Go on with the default kernels."""
    for group in optimizer.param_groups:
        if "fused" in group:
            group["fused"] = None
    does_not_unscale(optimizer)


def leave_unscaling(optimizer: Optimizer, is_scaled: bool) -> None:
    """Let gradients be as they are where they are clipped, and where hooks see them.

    A fused optimizer unscales them by itself, after that; Lightning refuses to clip before one,
    though in bfloat16 nothing is scaled.

    Args:
        optimizer: Any; one that was asked to be fused stays so.
        is_scaled: Whether they are multiplied against underflow in float16.
    """
    if not is_scaled:
        does_not_unscale(optimizer)
    elif getattr(optimizer, "may_unfuse", False):
        unfuse(optimizer)


def keep_kernels(optimizer: Optimizer) -> None:
    """Let a run step as it says itself, and not as the run did that wrote its checkpoint."""
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


def tidied(optimizer: Optimizer) -> None:
    """Let gradients lie as a fused kernel takes them to, or take the default kernels.

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
    # SGD wants momentum of all or of none: a layer that was thawed has none yet.
    states = [optimizer.state.get(each) or {} for each in parameters]
    return len({state.get("momentum_buffer") is None for state in states}) <= 1


def _is_plain(parameter: Tensor) -> bool:
    return local_shard(parameter).is_contiguous()


def _is_sparse(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.layout is not torch.strided
