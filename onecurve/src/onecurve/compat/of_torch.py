"""Private names of PyTorch and torchmetrics that are used, and what each waits for."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)
from torch.utils.data import DataLoader
from torch.utils.flop_counter import flop_registry
from torchmetrics import Metric

# - DisableTorchFunctionSubclass, FakeTensorMode, TorchDispatchMode: documented, and in no module
#   with a public name.
# - BatchNorm: what all kinds of it, synchronized ones too, are derived from.
# - tree_*: a public torch.utils.pytree is announced.
__all__ = [
    "BatchNorm",
    "DisableTorchFunctionSubclass",
    "FakeTensorMode",
    "TorchDispatchMode",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]


def tensor_leaves(tree: Any) -> list[Tensor]:
    """The tensors among the leaves of a tree."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


# PyTorch: autograd


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call a function once the backward pass under way has ended, before anybody sees gradients.

    DistributedDataParallel and FSDP2 do so; a public hook of the whole pass would do.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def is_in_backward() -> bool:
    """Whether a backward pass is under way in this thread, as activation checkpointing asks."""
    return bool(torch._C._current_graph_task_id() >= 0)


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place: what autograd compares."""
    return tensor._version


def hooked(module: nn.Module) -> list[str]:
    """The names of parameters whose gradients hooks see: ``register_hook`` and its like."""
    return [
        name
        for name, parameter in module.named_parameters()
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    ]


def remove_hooks(wrapped: DistributedDataParallel) -> None:
    """Let parameters be wrapped again: DistributedDataParallel has no public way to let go."""
    wrapped._remove_autograd_hooks()  # type: ignore[no-untyped-call]


@contextmanager
def clipping_replaced(norm: Callable[..., Tensor], scale: Callable[..., None]) -> Iterator[None]:
    """Replace the two halves of `torch.nn.utils.clip_grad_norm_`, which has no hook for them.

    Not the function itself, of which code that has imported it holds a reference.
    """
    module: Any = torch.nn.utils.clip_grad
    before = module._get_total_norm, module._clip_grads_with_norm_
    module._get_total_norm, module._clip_grads_with_norm_ = norm, scale
    try:
        yield
    finally:
        module._get_total_norm, module._clip_grads_with_norm_ = before


# PyTorch: modules, tensors, operators


def gather_before_backward(unit: FSDPModule, outputs: list[Tensor]) -> None:
    """Have FSDP2 gather a unit's parameters again when a gradient comes to one of these outputs.

    As it does for those that it finds itself; a public name for it is not announced.
    """
    unit._get_fsdp_state()._register_pre_backward_hook(outputs)


def compile_module(module: nn.Module, options: dict[str, Any]) -> None:
    """As ``module.compile()``, once; before torch 2.14 that passes over classes of `torch.nn`."""
    if module._compiled_call_impl is None:
        module._compiled_call_impl = torch.compile(_calling(module._call_impl), **options)


def _calling(call: Callable[..., Any]) -> Callable[..., Any]:
    # A function that is not PyTorch's own is traced with all that it calls.
    def traced(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return traced


def is_compiled_function(function: Callable[..., Any]) -> bool:
    """Whether it is what `torch.compile` returned."""
    return hasattr(function, "_torchdynamo_orig_callable")


def let_recompile(limit: int) -> None:
    """Let `torch.compile` keep so much code for a function; `torch.compiler` cannot say it."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, limit)


def apply_to_tensors(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """Replace parameters and buffers, as ``module.to`` does; `nn.Module.to` takes no function."""
    module._apply(function)  # type: ignore[no-untyped-call]


@contextmanager
def parameters_replaced(module: nn.Module, others: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a module's own parameters be other tensors; `functional_call` would call it as well."""
    held = module._parameters
    module._parameters = {**held, **others}  # type: ignore[dict-item]
    try:
        yield
    finally:
        module._parameters = held


def local_shard(tensor: Tensor) -> Tensor:
    """A DTensor's own, which ``to_local`` wraps for autograd at some cost; others as they are."""
    local: Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local


def claim(kind: type[Tensor], shape: list[int], of: Tensor) -> Any:
    """A tensor of a class that holds no data of its own, in the type and on the device of one.

    https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-with-a-tensor-wrapper-type
    """
    return torch.Tensor._make_wrapper_subclass(kind, shape, dtype=of.dtype, device=of.device)


def has_one_projection(attention: nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values are as wide, and so projected by one weight."""
    return bool(attention._qkv_same_embed_dim)


def address_of(storage: torch.UntypedStorage) -> int:
    """The storage itself, of which several Python objects may tell; ``data_ptr`` may be 0."""
    return int(storage._cdata)


def is_in_place(operator: Any) -> bool:
    """Whether an operator changes an argument, in a dispatch mode."""
    return bool(operator._schema.is_mutable)


def argument_names(operator: Any) -> list[str]:
    """Those of an operator, in a dispatch mode."""
    return [argument.name for argument in operator._schema.arguments]


def without_overload(operator: Any) -> Any:
    """What all overloads of an operator share, by which `flop_registry` counts."""
    return operator._overloadpacket


_aten = torch.ops.aten
# What is traced on a CPU is counted as on a GPU; PyTorch does so itself from 2.15 on.
_COUNTED_AS = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}


def flops_of(operator: Any) -> Any:
    """What counts the floating-point operations of an operator; None where nothing does."""
    packet = without_overload(operator)
    return flop_registry.get(_COUNTED_AS.get(packet, packet))


def does_not_unscale(optimizer: Optimizer) -> None:
    """Let gradients be unscaled before a fused optimizer's step, and not by it.

    Lightning and GradScaler read it; neither can be told in public.
    """
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


def never_captured(optimizer: Optimizer) -> None:
    """Let an optimizer on a CPU not ask at every step whether a CUDA graph is captured.

    It asks whether there is a GPU first. With Lightning's way of asking, which lets processes fork
    after it, that looks for the driver's library on the disk each time: some 150 us where there is
    none.
    """
    optimizer._accelerator_graph_capture_health_check = _nothing  # type: ignore[method-assign]


def _nothing(*_: Any) -> None:
    pass


def iterator_of(loader: Any) -> Any:
    """Of a loader with workers that live on, by which Lightning ends them."""
    return loader._iterator


def set_iterator(loader: DataLoader[Any], iterator: Any) -> None:
    """As `iterator_of`; a DataLoader lets nobody set another attribute of its own."""
    vars(loader).update(_iterator=iterator)


# torchmetrics


@contextmanager
def state_kept(metric: Metric) -> Iterator[None]:
    """Leave a metric as it is found; torchmetrics' ``forward`` alone does so, of its own."""
    state, count = metric._copy_state_dict(), metric._update_count
    try:
        yield
    finally:
        for name, value in state.items():
            setattr(metric, name, value)
        metric._update_count, metric._computed = count, None


def defaults_of(metric: Metric) -> dict[str, Any]:
    """The states of a metric by name, as they begin: what ``add_state`` was told."""
    return metric._defaults


def reductions_of(metric: Metric) -> dict[str, Any]:
    """How each state is put together over ranks."""
    return metric._reductions


def set_value_of_call(metric: Metric, value: Any) -> None:
    """What a call of the metric has returned, which Lightning logs on_step."""
    metric._forward_cache = value
