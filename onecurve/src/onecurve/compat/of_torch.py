"""Private names of PyTorch and torchmetrics that we use, each with what would replace it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp import GradScaler
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
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

from .patches import replaced

# - DisableTorchFunction*, FakeTensorMode, TorchDispatchMode: documented, but only importable
#   from private modules.
# - BatchNorm: the base class of all kinds, including SyncBatchNorm.
# - tree_*: a public torch.utils.pytree has been announced.
# - TrainingState: FSDP2 says in no public way what a unit is doing.
# - SKIP_META: modules that do something else with a tensor on the meta device, instead of an error:
#   histograms of TensorBoard show random numbers, initializers leave it as it is.
SKIP_META = ("torch.utils.tensorboard._convert_np", "torch.nn.init")
__all__ = [
    "SKIP_META",
    "BatchNorm",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "FakeTensor",
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
    """Call a function at the end of the current backward pass, before `backward` returns.

    DistributedDataParallel and FSDP2 do so; a public hook for the end of the pass would replace it.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def is_in_backward() -> bool:
    """Whether a backward pass runs in this thread; activation checkpointing uses the same check."""
    return bool(torch._C._current_graph_task_id() >= 0)


def version_of(tensor: Tensor) -> int:
    """What counts in-place changes of a tensor; -1 of one made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def hooked(module: nn.Module) -> list[str]:
    """The names of parameters whose gradients hooks of a task see (``register_hook``)."""
    return [
        name
        for name, parameter in module.named_parameters()
        if _are_foreign(parameter._backward_hooks)
        or _are_foreign(parameter._post_accumulate_grad_hooks)
    ]


def _are_foreign(hooks: Mapping[int, Any] | None, known: tuple[str, ...] = ("onecurve.",)) -> bool:
    modules = [str(getattr(hook, "__module__", "")) for hook in (hooks or {}).values()]
    return not all(module.startswith(known) for module in modules)


def sees_outputs(module: nn.Module) -> bool:
    """Whether a module has a hook of somebody else: ``register_forward_hook``."""
    return _are_foreign(module._forward_hooks, ("torch.", "onecurve."))


def remove_hooks(wrapped: DistributedDataParallel) -> None:
    """Remove the autograd hooks of a DistributedDataParallel, so that it can be replaced."""
    wrapped._remove_autograd_hooks()  # type: ignore[no-untyped-call]


@contextmanager
def clipping_replaced(norm: Callable[..., Tensor], scale: Callable[..., None]) -> Iterator[None]:
    """Replace the two functions that `torch.nn.utils.clip_grad_norm_` calls.

    Not the function itself: code that has imported it by name holds a reference to it. Beside it,
    `clip_grad_value_` accepts that a rank has no gradients.
    """
    module: Any = torch.nn.utils.clip_grad
    grouped = module._group_tensors_by_device_and_dtype
    with (
        replaced(
            module,
            "_group_tensors_by_device_and_dtype",
            lambda lists, *options: grouped(lists, *options) if lists[0] else {},
        ),
        replaced(module, "_get_total_norm", norm),
        replaced(module, "_clip_grads_with_norm_", scale),
    ):
        yield


# PyTorch: modules, tensors, operators


def begin_backward(unit: FSDPModule) -> None:
    """Gather a unit for the backward pass that begins, and let FSDP2 end that pass.

    FSDP2 does so by the outputs that it finds; there is no public function for it.
    """
    unit._get_fsdp_state()._pre_backward(torch.empty(0))


def is_in_forward(unit: FSDPModule) -> bool:
    """Whether FSDP2 has gathered a unit for a call that is under way."""
    return bool(unit._get_fsdp_state()._training_state == TrainingState.FORWARD)


def reduce_late_gradients(unit: FSDPModule) -> None:
    """Average gradients that came after FSDP2 had averaged those of a unit, and would be lost.

    It averages them once the unit's input has its gradient, which a second derivative may reach
    before the weights have theirs. It does nothing if there are none.
    """
    group = unit._get_fsdp_state()._fsdp_param_group
    if group is not None and group._training_state == TrainingState.POST_BACKWARD:
        group.post_backward()


def compile_module(module: nn.Module, options: dict[str, Any]) -> None:
    """Like ``module.compile()``, once; before torch 2.14 that skips classes of `torch.nn`."""
    if module._compiled_call_impl is None:
        call: Callable[..., Any] = module._call_impl

        # A function that is not PyTorch's own is traced including everything that it calls.
        def traced(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        module._compiled_call_impl = torch.compile(traced, **options)


def is_compiled_function(function: Callable[..., Any]) -> bool:
    """Whether a function was returned by `torch.compile`."""
    return hasattr(function, "_torchdynamo_orig_callable")


class Compiled(NamedTuple):
    """What enters and leaves a compiled forward pass, and what it keeps: those, or others."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    kept: list[Tensor]


def kept_by_compile(function: Callable[..., Any], *inputs: Any) -> Compiled | None:
    """What torch.compile keeps of a forward pass for the backward pass; None if there is none.

    Its own partitioner decides that: it recomputes what costs little, unless the result would have
    to be in memory anyway. No code is generated, and inputs need no data.
    """
    # Imported here, as only a plan for compiled layers needs them, and they take long.
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    compiled: list[Compiled] = []

    def partition(joint: Any, values: Any, **options: Any) -> tuple[Any, Any]:
        forward, backward = min_cut_rematerialization_partition(joint, values, **options)
        nodes, number = forward.graph.nodes, options["num_fwd_outputs"]
        entering = [node for node in nodes if node.op == "placeholder"]
        (leaving,) = next(node for node in nodes if node.op == "output").args
        parts = (entering, leaving[:number], leaving[number:])
        # The fake tensors of nodes; a part may also have constants.
        fakes = [[n.meta.get("val") for n in p if isinstance(n, torch.fx.Node)] for p in parts]
        compiled.append(Compiled(*map(tensor_leaves, fakes)))
        return forward, backward

    def as_it_is(gm: Any, example_inputs: Any) -> Any:
        return gm

    table = select_decomp_table()
    aot_function(function, as_it_is, partition_fn=partition, decompositions=table)(*inputs)
    return compiled[0] if compiled else None


def recompiling(limit: int) -> AbstractContextManager[None]:
    """Raise the number of variants that `torch.compile` keeps per function to this limit."""
    config: Any = torch._dynamo.config
    most = max(config.recompile_limit, limit)
    return cast(AbstractContextManager[None], config.patch(recompile_limit=most))


def apply_to_tensors(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """Apply a function to parameters and buffers, as ``module.to`` does internally."""
    module._apply(function)  # type: ignore[no-untyped-call]


def parameters_replaced(
    module: nn.Module, others: Mapping[str, Tensor]
) -> AbstractContextManager[None]:
    """Replace a module's own parameters in a context; `functional_call` would also call it."""
    return replaced(module, "_parameters", {**module._parameters, **others})


def batch_norm_statistics(input: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel, in at least single precision; zeros of no values."""
    kind = torch.promote_types(input.dtype, torch.float32)
    # Running statistics, which a momentum of 0 leaves alone, tell the kernel the precision.
    unused = input.new_zeros(2, input.shape[1], dtype=kind)
    if not input.numel():
        return unused[0], unused[1]
    return torch.ops.aten.batch_norm_update_stats(input, *unused, 0.0)  # type: ignore[no-any-return]


def batch_norm_gradients(
    gradient: Tensor,
    input: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias for a mean and variance that do not depend on the input.

    Without a weight and a bias, of those that would be there.
    """
    if not input.numel():  # which ends the process
        return gradient, *torch.zeros_like(torch.stack([mean, mean]))
    return torch.ops.aten.native_batch_norm_backward(  # type: ignore[no-any-return]
        gradient, input, weight, mean, variance, None, None, False, eps, [True, True, True]
    )


def local_shard(tensor: Tensor) -> Tensor:
    """A DTensor's local tensor, without the autograd overhead of ``to_local``; others as is."""
    local: Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local


@contextmanager
def operators_of_shards(handlers: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Handle operators on DTensors within the context, as PyTorch's `loss_parallel` does."""
    known = DTensor._op_dispatcher._custom_op_handlers
    known.update(handlers)
    try:
        yield
    finally:
        for operator in handlers:
            known.pop(operator, None)


@contextmanager
def without_handler(operator: Any) -> Iterator[None]:
    """Within a handler of `operators_of_shards`: let PyTorch handle the operator."""
    known = DTensor._op_dispatcher._custom_op_handlers
    handler = known.pop(operator)
    try:
        yield
    finally:
        known[operator] = handler


def address_of(storage: torch.UntypedStorage) -> int:
    """Identifies a storage even if several Python objects wrap it; ``data_ptr`` may be 0."""
    return int(storage._cdata)


def is_in_place(operator: Any) -> bool:
    """Whether an operator changes one of its arguments."""
    return bool(operator._schema.is_mutable)


def argument_names(operator: Any) -> list[str]:
    """The names of an operator's arguments."""
    return [argument.name for argument in operator._schema.arguments]


_aten = torch.ops.aten
# CPU operators that are counted like their GPU versions; PyTorch does so itself from 2.15 on.
_COUNTED_AS = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}


def flops_of(operator: Any) -> Any:
    """The function that counts an operator's floating-point operations; None if there is none."""
    packet = operator.overloadpacket
    return flop_registry.get(_COUNTED_AS.get(packet, packet))


def does_not_unscale(optimizer: Optimizer) -> None:
    """Make GradScaler unscale gradients before a fused optimizer's step, not inside of it.

    Lightning and GradScaler read this attribute; there is no public setting.
    """
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


@contextmanager
def unscaling_within(
    scaler: GradScaler, context: Callable[[Optimizer], AbstractContextManager[Any]]
) -> Iterator[None]:
    """Let a scaler read the gradients of an optimizer within a context, also a fused one's."""
    unscale = scaler._unscale_grads_

    def unscale_within(optimizer: Optimizer, *args: Any) -> Any:
        with context(optimizer):
            return unscale(optimizer, *args)

    with replaced(scaler, "_unscale_grads_", unscale_within):
        yield


def never_captured(optimizer: Optimizer) -> None:
    """Keep an optimizer on a CPU from checking at every step whether a CUDA graph is captured.

    The check first asks whether there is a GPU. With the fork-safe check that Lightning enables,
    that searches the disk for the driver's library each time, which takes some 150 us.
    """
    optimizer._accelerator_graph_capture_health_check = _nothing  # type: ignore[method-assign]


def _nothing(*_: Any) -> None:
    pass


def iterator_of(loader: Any) -> Any:
    """The iterator of a loader with persistent workers, by which Lightning shuts them down."""
    return loader._iterator


def set_iterator(loader: DataLoader[Any], iterator: Any) -> None:
    """Set what `iterator_of` returns, although DataLoader forbids setting attributes."""
    vars(loader).update(_iterator=iterator)


# torchmetrics


@contextmanager
def state_kept(metric: Metric) -> Iterator[None]:
    """Restore a metric's state at the end of the context."""
    state, count = metric._copy_state_dict(), metric._update_count
    try:
        yield
    finally:
        for name, value in state.items():
            setattr(metric, name, value)
        metric._update_count, metric._computed = count, None


def reductions_of(metric: Metric) -> dict[str, Any]:
    """The function by which each state is reduced over ranks, by name."""
    return metric._reductions


@contextmanager
def without_data() -> Iterator[None]:
    """Within the context, tensors have no data; what fails is raised, and not logged as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    with replaced(log, "disabled", True), FakeTensorMode(allow_non_fake_inputs=True):
        yield
