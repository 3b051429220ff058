"""Applies activation checkpointing and torch.compile to layers, before they are sharded.

Exact: losses differ by rounding at most; dropout draws the same masks. No module is wrapped, so
names of modules and parameters do not change.
Sources: https://docs.pytorch.org/docs/stable/checkpoint.html (selective: the policy of torchtitan,
which keeps what is expensive), https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ..compat.of_torch import BatchNorm, compile_module, is_compiled_function, recompiling
from ..torch_versions import require
from .layers import called, find_layers
from .options import Recomputed

Compiled = Literal["none", "layer", "whole"]
"""What torch.compile compiles: each layer, or the task's `forward` (whole)."""

# Operators whose results selective checkpointing keeps: matrix products, attention, collectives.
KEPT = {
    "aten": (
        *("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "_scaled_mm"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    "_c10d_functional": (
        *("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"),
        *("all_to_all_single", "wait_tensor"),
    ),
}
# Compiled variants per class of layers: training and evaluation, full and last batches, ...
VARIANTS = 8


def apply_ac_and_compile(
    module: LightningModule,
    recomputed: Recomputed = "none",
    compiled: Compiled = "none",
    *,
    backend: str = "inductor",
    layers: Iterable[nn.Module] | None = None,
) -> None:
    """Apply activation checkpointing to layers, then compile them. Repeated calls change nothing.

    Call this before parameters are sharded, and before a module is wrapped for DDP or a pipeline.

    The layers are by default those of `find_layers`, or the children of a task that defines no
    order; those without parameters are left alone. The loss is compiled too.
    """
    if layers is None:
        found = find_layers(module)
        layers = called(module.children()) if found is None else found.values()
    chosen = [
        layer for layer in dict.fromkeys(layers) if next(layer.parameters(), None) is not None
    ]
    if recomputed not in ("none", False):
        for layer in chosen:
            _checkpoint(layer, _selectively if recomputed == "selective" else _fully)
    if compiled == "none":
        return
    if recomputed == "selective" and any(p.dtype == torch.float64 for p in module.parameters()):
        require("activation_checkpointing=selective with compile in float64")
    options: dict[str, Any] = {"backend": backend}
    if backend == "inductor":
        # Draw the same random numbers as without torch.compile.
        options["options"] = {"fallback_random": True}
    if compiled == "whole":
        _compile_method(module, "forward", options)
    else:
        for layer in chosen:
            compile_module(layer, options)
    _compile_loss(module, options)


def variants_kept(task: nn.Module, compiled: Compiled) -> AbstractContextManager[None]:
    """Within the context, `torch.compile` keeps variants for all kinds of layers of a task."""
    if compiled == "none":
        return nullcontext()
    return recompiling(VARIANTS * (1 + len({type(module) for module in task.modules()})))


def _checkpoint(layer: nn.Module, checkpointed: Callable[..., Any]) -> None:
    forward = layer.forward
    if isinstance(forward, partial) and forward.func in (_fully, _selectively):
        return
    # Replacing `forward` keeps this beneath the hooks that gather parameters, and keeps parameter
    # names. A partial is copied with its layer; `__wrapped__` gives it the layer's signature.
    norms = tuple(submodule for submodule in layer.modules() if isinstance(submodule, BatchNorm))
    recomputed = partial(checkpointed, forward, norms)
    recomputed.__wrapped__ = forward  # type: ignore[attr-defined]
    layer.forward = recomputed


# Module-level functions, because torch.compile starts tracing a layer here.
def _fully(forward: Callable[..., Any], norms: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
    options: dict[str, Any] = {}
    if norms and not torch.compiler.is_compiling():
        options["context_fn"] = lambda: (nullcontext(), _statistics_kept(norms))
    return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)


def _selectively(
    forward: Callable[..., Any], norms: tuple[Any, ...], *args: Any, **kwargs: Any
) -> Any:
    context = _keep_operators
    if norms and not torch.compiler.is_compiling():
        context = partial(_keep_operators, norms)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=context, **kwargs)


def _keep_operators(norms: tuple[Any, ...] = ()) -> Any:
    first, again = create_selective_checkpoint_contexts(_kept_operators())  # type: ignore[no-untyped-call]
    return first, _statistics_kept(norms, again) if norms else again


@contextmanager
def _statistics_kept(norms: tuple[Any, ...], context: Any = nullcontext()) -> Iterator[None]:  # noqa: B008
    """Within the context, in which layers are called again, BatchNorm counts no batch twice."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        # The running statistics move by nothing; PyTorch's kernel must still be given them.
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with context:
            yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches


@cache
def _kept_operators() -> list[Any]:
    found = []
    for library, names in KEPT.items():
        operators = getattr(torch.ops, library)
        # Some operators are missing in some releases.
        packets = [getattr(operators, name) for name in names if hasattr(operators, name)]
        found += [getattr(packet, each) for packet in packets for each in packet.overloads()]
    return found


def _compile_loss(module: LightningModule, options: dict[str, Any]) -> None:
    loss = getattr(module, "loss", None)
    if isinstance(loss, nn.Module):
        compile_module(loss, options)
    elif callable(loss):
        code = getattr(loss, "__code__", None)
        if code is None or "all_samples" not in code.co_names:  # which is a collective
            _compile_method(module, "loss", options)


def _compile_method(module: LightningModule, name: str, options: dict[str, Any]) -> None:
    method = getattr(module, name)
    if not is_compiled_function(method):
        setattr(module, name, torch.compile(method, **options))
