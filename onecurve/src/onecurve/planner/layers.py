"""What one layer computes, keeps and sends in a training step, run on fake tensors.

Styles of a tensor group are those of `strategy.plan`. Only nn.Linear and nn.Embedding are sharded
here; other modules count in full.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ..compat.of_torch import address_of, kept_by_compile, without_data
from ..compat.patches import replaced
from ..strategies.pipeline.shapes import call_layer, with_tensors_on
from ..strategies.tensor.styles import (
    STYLES,
    is_divided,
    is_linear,
    is_transposed,
    share_counts,
)
from .operations import ATTENTION, Recorder, WeakRef, Work, grows_with, work

Tensors = tuple[Tensor, ...]
Autocast = Callable[[], AbstractContextManager[Any]]
CPU = torch.device("cpu")


class Conditions(NamedTuple):
    """How a layer is run on a rank."""

    tensor: int = 1  # ranks among which matrices are sharded
    context: int = 1  # ranks among which sequences are sharded: see `on_context_shard`
    dtype: torch.dtype | None = None  # type in which parameters are used, if it is not their own
    checkpointing: str = "none"
    """Activations that are recomputed: "none", "selective", "full"; or "every second": what
    "selective" recomputes and every second matrix product, as in torchtitan."""


@dataclass
class Traffic:
    """What the passes of one layer communicate: bytes of full tensors, forward and backward.

    They are all-reduced or gathered over the tensor group, by so many calls; a context group
    gathers keys and values.
    """

    reduced: list[float] = field(default_factory=lambda: [0.0, 0.0])
    gathered: list[float] = field(default_factory=lambda: [0.0, 0.0])
    calls: list[int] = field(default_factory=lambda: [0, 0])
    keys: float = 0.0


class Passes(NamedTuple):
    """A layer's forward and backward pass for some samples; sizes in bytes, of a sample."""

    forward: Work
    backward: Work
    # Saved for the backward pass, without the layer's inputs and outputs: for each sample, and
    # whatever the number of samples (weights in another type).
    held: tuple[float, float]
    holds_input: bool  # whether the input is saved for the backward pass, too
    holds_output: bool  # whether the output is saved, too
    passes_on: bool  # whether the output is a view of the input
    input_bytes: float
    output_bytes: float
    most: float  # allocated at the end of the forward pass
    traffic: Traffic
    outputs: Tensors  # on the meta device


BATCH = 13
"""Samples that are run: a prime, of which only sizes that grow with the batch are multiples."""


def run_layer(
    layer: nn.Module | Callable[..., Any],
    inputs: Tensors,
    conditions: Conditions,
    styles: Mapping[str, str],
    autocast: Autocast,
    fused: bool = False,
) -> Passes:
    """Run a layer's forward pass, and its backward pass if it has one, on `BATCH` samples.

    Parameters may be on the meta device. `styles` tell how modules are sharded, by their names
    within the layer. `fused`, the layer is compiled: elementwise operations are one pass over
    memory, and what is saved is what `_kept_if_compiled` says.
    """
    recorder, traffic = Recorder(), Traffic()
    with torch.inference_mode(False), torch.enable_grad(), without_data():
        run = layer
        if isinstance(layer, nn.Module):
            run = _on_rank(layer, conditions, styles, traffic)
        # The graph would hold leaves, which the inputs of a layer are not.
        leaves = [
            torch.empty(x.shape, dtype=x.dtype, device=CPU, requires_grad=x.requires_grad)
            for x in inputs
        ]
        entering = tuple(value.clone() if value.requires_grad else value for value in leaves)
        with recorder, autocast(), _recording_attention(traffic):
            result = run(*entering)
            outputs: Tensors = result if isinstance(result, tuple) else (result,)
            forward = len(recorder.operations)
            most = sum(recorder.held().values())
            entered = {recorder.number(value): float(value.nbytes) for value in entering}
            left = {recorder.number(value): float(value.nbytes) for value in outputs}
            described = [(value.shape, value.dtype, value.requires_grad) for value in outputs]
            trained = [value for value in outputs if value.requires_grad]
            edges = [get_gradient_edge(value) for value in trained]
            shaped = [(value.shape, value.dtype) for value in trained]
            owners = [WeakRef(value.untyped_storage()) for value in entering]
            del entering, outputs, result, trained, leaves
            held = recorder.held()
            holds_input = bool(edges) and not all(owner.expired() for owner in owners)
            if edges:
                gradients = [torch.empty(shape, dtype=dtype) for shape, dtype in shaped]
                torch.autograd.backward(edges, gradients)
        kept = None
        if edges and fused and conditions.checkpointing == "none":
            kept = _kept_if_compiled(layer, inputs, conditions, styles, autocast)
    later = {number for each in recorder.operations[forward:] for number in each.reads}
    done = recorder.operations
    passes = Passes(
        forward=work(done[:forward], later | set(left), fused, BATCH),
        backward=work(done[forward:], set(), fused, BATCH),
        held=_by_sample(size for n, size in held.items() if n not in left and n not in entered),
        holds_input=holds_input,
        holds_output=any(number in held for number in left) and not set(left) & set(entered),
        passes_on=bool(set(left) & set(entered)),
        input_bytes=sum(entered.values()) / BATCH,
        output_bytes=sum(left.values()) / BATCH,
        most=most / BATCH,
        traffic=traffic,
        outputs=tuple(_meta(*each) for each in described),
    )
    if kept is None:
        return passes
    most = sum(kept.held) / BATCH + passes.output_bytes
    return passes._replace(
        held=_by_sample(kept.held),
        holds_input=kept.holds_input,
        holds_output=kept.holds_output and not passes.passes_on,
        most=most,
    )


class Kept(NamedTuple):
    """What a compiled forward pass saves for the backward pass; sizes in bytes."""

    held: list[float]
    holds_input: bool
    holds_output: bool


def _kept_if_compiled(
    layer: nn.Module | Callable[..., Any],
    inputs: Tensors,
    conditions: Conditions,
    styles: Mapping[str, str],
    autocast: Autocast,
) -> Kept | None:
    """What torch.compile would save, by its own rules; None of a layer that it cannot take whole.

    These save what a matrix product reads, even if it could be recomputed, and recompute the rest:
    of a transformer's block the outputs of norms, attention and activation, but neither what the
    norms make in float32 nor the softmax of the loss.
    """
    copy = state = None
    if isinstance(layer, nn.Module):
        copy = _copy_on_rank(layer, conditions, styles, Traffic())
        state = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}

    def forward(state: Any, *inputs: Tensor) -> Any:
        return functional_call(copy, state, inputs) if copy else layer(*inputs)

    entering = [
        torch.empty(x.shape, dtype=x.dtype, device=CPU, requires_grad=x.requires_grad)
        for x in inputs
    ]
    try:
        with autocast():
            saved = kept_by_compile(forward, state, *entering)
    except Exception:  # torch.compile would take it in pieces, which save what is not compiled
        return None
    if saved is None:
        return None
    of_inputs = saved.inputs[len(state or ()) :]
    kept = {_storage(value): float(value.untyped_storage().nbytes()) for value in saved.kept}
    outside = {_storage(value) for value in [*saved.inputs, *saved.outputs]}
    return Kept(
        [size for storage, size in kept.items() if storage not in outside],
        any(_storage(value) in kept for value in of_inputs),
        any(_storage(value) in kept for value in saved.outputs),
    )


def _storage(tensor: Tensor) -> int:
    return address_of(tensor.untyped_storage())


def _by_sample(sizes: Iterable[float]) -> tuple[float, float]:
    """The sum of sizes that grow with the batch, for a sample, and the sum of those that do not."""
    every = list(sizes)
    grows = sum(size for size in every if grows_with(size, BATCH))
    return grows / BATCH, sum(every) - grows


def _copy_on_rank(
    layer: nn.Module, conditions: Conditions, styles: Mapping[str, str], traffic: Traffic
) -> nn.Module:
    copy = with_tensors_on(CPU, {"layer": layer})["layer"]
    copy.train()
    if conditions.dtype is not None:
        _to_type(copy, conditions.dtype)
    _shard(copy, styles, conditions.tensor, traffic)
    return copy


def _on_rank(
    layer: nn.Module, conditions: Conditions, styles: Mapping[str, str], traffic: Traffic
) -> Callable[..., Any]:
    copy = _copy_on_rank(layer, conditions, styles, traffic)

    def run(*inputs: Tensor) -> Any:
        return call_layer(copy, inputs)

    if conditions.checkpointing == "none":
        return run
    options: dict[str, Any] = {"use_reentrant": False}
    if conditions.checkpointing != "full":
        policy = _policy(conditions.checkpointing == "every second")
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    return partial(checkpoint, run, **options)


def local_shape(style: str | None, module: nn.Module, name: str, size: int) -> tuple[int, ...]:
    """The shape of a parameter on one of `size` ranks of a tensor group."""
    parameter = getattr(module, name)
    shape = list(parameter.shape)
    dimension = _dimension(style, module, name)
    if dimension is not None:
        shape[dimension] = math.ceil(shape[dimension] / size)
    return tuple(shape)


def _shard(layer: nn.Module, styles: Mapping[str, str], size: int, traffic: Traffic) -> None:
    """Shard the modules of a layer in place, and record what each call of one communicates."""
    if size == 1:
        return

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        # The gradient of what all ranks read is summed.
        if isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
            traffic.reduced[1] += float(inputs[0].nbytes)
            traffic.calls[1] += 1

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        traffic.reduced[0] += float(output.nbytes)
        traffic.calls[0] += 1

    def gather(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        full = torch.cat([output] * size, dim=-1)
        traffic.gathered[0] += float(full.nbytes)
        traffic.calls[0] += 1
        return full

    for name, style in styles.items():
        module = layer.get_submodule(name)
        if is_divided(module, style):
            share_counts(module, size)
        if _dimension(style, module, "weight") is None:
            continue
        for own, parameter in list(module.named_parameters(recurse=False)):
            shape = local_shape(style, module, own, size)
            empty = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
            setattr(module, own, nn.Parameter(empty, parameter.requires_grad))
        if style == "rowwise" or isinstance(module, nn.Embedding):
            module.register_forward_hook(leave)
        else:
            module.register_forward_pre_hook(enter)
        if style == "colwise_gather":
            module.register_forward_hook(gather)


def _dimension(style: str | None, module: nn.Module, name: str) -> int | None:
    if style not in STYLES or not (is_linear(module) or isinstance(module, nn.Embedding)):
        return None
    dimension = STYLES[style].dims.get(name)
    is_flipped = is_transposed(module) and name == "weight"
    return 1 - dimension if is_flipped and dimension is not None else dimension


def _to_type(layer: nn.Module, dtype: torch.dtype) -> None:
    for module in layer.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_floating_point():
                low = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
                setattr(module, name, low)


def _policy(every_second: bool) -> Callable[..., CheckpointPolicy]:
    """Save what is expensive: attention, and all or every second of the matrix products."""
    products = {False: 0, True: 0}

    def policy(context: Any, func: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        keep = ATTENTION in str(func)
        if func.overloadpacket in PRODUCTS:
            products[context.is_recompute] += 1
            keep = not every_second or products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution}


@contextmanager
def _recording_attention(traffic: Traffic) -> Iterator[None]:
    """Record the keys and values of attention, which ranks of a context group gather."""
    attention = functional.scaled_dot_product_attention

    def recording(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        traffic.keys += float(key.nbytes + value.nbytes)
        return attention(query, key, value, *args, **options)

    with replaced(functional, "scaled_dot_product_attention", recording):
        yield


def on_context_shard(passes: Passes, size: int) -> Passes:
    """The passes of a rank that has one of `size` shards of every sequence.

    All is as much less, but for keys and values, which it gathers: they are written, read and
    saved for the backward pass in full.
    """
    full = passes.traffic
    reduced, gathered = ([each / size for each in sizes] for sizes in (full.reduced, full.gathered))
    keys = full.keys / BATCH
    by_sample, fixed = passes.held
    return passes._replace(
        forward=_sharded_work(passes.forward, size, 2 * keys),
        backward=_sharded_work(passes.backward, size, 4 * keys),
        held=(by_sample / size + keys * (1 - 1 / size), fixed),
        input_bytes=passes.input_bytes / size,
        output_bytes=passes.output_bytes / size,
        most=passes.most / size + keys,
        traffic=replace(full, reduced=reduced, gathered=gathered),
        outputs=tuple(_shorter(value, size) for value in passes.outputs),
    )


def _sharded_work(work: Work, size: int, more: float) -> Work:
    moved = work.bytes / size
    if len(moved):
        moved = moved + work.is_attention * more / max(1.0, float(work.is_attention.sum()))
    return work._replace(flops=work.flops / size, skipped=work.skipped / size, bytes=moved)


def _shorter(value: Tensor, size: int) -> Tensor:
    if value.ndim < 2:
        return value
    shape = torch.Size((value.shape[0], value.shape[1] // size, *value.shape[2:]))
    return _meta(shape, value.dtype, value.requires_grad)


def _meta(shape: torch.Size, dtype: torch.dtype, requires_grad: bool) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta").requires_grad_(requires_grad)
