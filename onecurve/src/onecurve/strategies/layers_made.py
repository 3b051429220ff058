"""What is made of each layer before it is spread over ranks: computed again, and compiled.

Exact: a loss differs by rounding at most, dropout's masks too. Names of modules and of parameters
stay what they were, for nothing is wrapped.
Sources: https://docs.pytorch.org/docs/stable/checkpoint.html (selective: the policy of torchtitan,
which keeps what is expensive), https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ..compat.of_torch import compile_module, is_compiled_function, let_recompile
from ..torch_versions import require
from .layers import called, find_layers

Recomputed = Literal["none", "selective", "full"] | bool
"""What a backward pass computes again; true is full and false none, as they once were."""
Compiled = Literal["none", "layer", "whole"]

# What selective checkpointing keeps: matrix products, attention, and what was sent.
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
# Kinds of layers share one cache of code, each for training and evaluation, full and last batches.
VARIANTS = 8


def make_layers(
    module: LightningModule,
    recomputed: Recomputed = "none",
    compiled: Compiled = "none",
    *,
    backend: str = "inductor",
    layers: Iterable[nn.Module] | None = None,
    loss: bool = True,
) -> None:
    """Make layers compute again, then compile them: once, however often this is called.

    Before parameters are sharded, and before a module is wrapped for DDP or a pipeline.

    Args:
        module: The task.
        recomputed: What is not kept for the backward pass: nothing, everything within a layer, or
            what is cheap to compute again.
        compiled: What torch.compile makes code of: nothing, each layer, or the whole forward; and
            with either the task's loss.
        backend: torch.compile's.
        loss: Whether the loss may be compiled, too.
        layers: Those that are meant; by default those of `find_layers`, or the parts of a task that
            names none. Of them, those that have parameters.
    """
    if layers is None:
        found = find_layers(module)
        layers = called(module.children()) if found is None else found.values()
    chosen = [
        layer for layer in dict.fromkeys(layers) if next(layer.parameters(), None) is not None
    ]
    if recomputed not in ("none", False):
        for layer in chosen:
            _recompute(layer, _most_again if recomputed == "selective" else _all_again)
    if compiled == "none":
        return
    if recomputed == "selective" and any(p.dtype == torch.float64 for p in module.parameters()):
        require("activation_checkpointing=selective with compile in float64")
    options: dict[str, Any] = {"backend": backend}
    if backend == "inductor":
        # Draw what is drawn without it.
        options["options"] = {"fallback_random": True}
    limit = VARIANTS * (1 + len({type(layer) for layer in chosen}))
    let_recompile(limit)
    if compiled == "whole":
        _compile_method(module, "forward", options)
    else:
        for layer in chosen:
            compile_module(layer, options)
    if loss:
        _compile_loss(module, options)


def _recompute(layer: nn.Module, again: Callable[..., Any]) -> None:
    forward = layer.forward
    if isinstance(forward, partial) and forward.func in (_all_again, _most_again):
        return
    # Beneath the hooks that gather parameters, and without a wrapper that would change their names;
    # a partial is copied with its layer, and its signature is that of the layer.
    made = partial(again, forward)
    made.__wrapped__ = forward  # type: ignore[attr-defined]
    layer.forward = made


# Functions of their own: what torch.compile finds first in a layer.
def _all_again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _most_again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, context_fn=_keeping, **kwargs)


def _keeping() -> Any:
    return create_selective_checkpoint_contexts(_operators())  # type: ignore[no-untyped-call]


@cache
def _operators() -> list[Any]:
    found = []
    for library, names in KEPT.items():
        operators = getattr(torch.ops, library)
        # Some are not in every release.
        packets = [getattr(operators, name) for name in names if hasattr(operators, name)]
        found += [getattr(packet, each) for packet in packets for each in packet.overloads()]
    return found


def _compile_loss(module: LightningModule, options: dict[str, Any]) -> None:
    loss = getattr(module, "loss", None)
    if isinstance(loss, nn.Module):
        compile_module(loss, options)
    elif callable(loss) and "all_samples" not in _names(loss):
        _compile_method(module, "loss", options)


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    """What a function mentions: collectives among ranks are left as they are."""
    code = getattr(function, "__code__", None)
    return code.co_names if code is not None else ()


def _compile_method(module: LightningModule, name: str, options: dict[str, Any]) -> None:
    method = getattr(module, name)
    if not is_compiled_function(method):
        setattr(module, name, torch.compile(method, **options))
