"""What one layer does in a training step, on fake tensors: shapes and types without data."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ..compat.of_torch import FakeTensorMode
from ..strategies.pipeline.shapes import with_tensors_on
from ..strategies.pipeline.stage import call_layer
from .operations import ATTENTION, Recorder, Work, grows_with, is_gone, owner_of, work
from .tensor_parts import Sent, cut

Tensors = tuple[Tensor, ...]
Autocast = Callable[[], AbstractContextManager[Any]]
CPU = torch.device("cpu")


class Conditions(NamedTuple):
    """Under what a layer runs on a rank."""

    tensor: int = 1
    """Ranks among which matrices are cut."""
    context: int = 1
    """Ranks among which sequences are cut: see `on_a_piece`."""
    dtype: torch.dtype | None = None
    """Type of the parameters that are used, if it is not their own."""
    checkpointing: str = "none"
    """What of activations is computed again: "none", "selective", "full"; or "every second"
    of the matrix products beside what "selective" does, as torchtitan has it."""
    fused: bool = False
    """Whether elementwise operations are one pass over memory."""


class Passes(NamedTuple):
    """A layer's forward and backward pass for some samples; sizes in bytes."""

    forward: Work
    backward: Work
    held: tuple[float, float]
    """What waits for the backward pass, without what enters and leaves the layer: for
    each sample, and for any number of them (weights in another type)."""
    holds_input: bool
    holds_output: bool
    """Whether the output waits, too."""
    passes_on: bool
    """Whether the output is the input, seen in another shape."""
    input_bytes: float
    """Of a sample."""
    output_bytes: float
    """Of a sample."""
    most: float
    """What the forward pass has made at its end, for a sample."""
    sent: Sent
    """What of it the ranks of a tensor or context group tell each other."""
    outputs: Tensors
    """On the meta device."""


BATCH = 13
"""Samples of what is run: a prime, so that sizes that grow with the batch are its multiples."""


def passes(
    layer: nn.Module | Callable[..., Any],
    inputs: Tensors,
    conditions: Conditions,
    styles: Mapping[str, str],
    autocast: Autocast,
) -> Passes:
    """Run a layer's forward pass, and the backward pass if it has one.

    Args:
        layer: A module, whose parameters may be on the meta device, or a function of the inputs.
        inputs: What enters it on one rank, of `BATCH` samples; those count that require gradients.
        conditions: See there.
        styles: How modules are cut, by their names within the layer.
        autocast: Entered around the forward pass.
    """
    recorder, sent = Recorder(), Sent()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.inference_mode(False), torch.enable_grad(), fake:
        run = layer
        if isinstance(layer, nn.Module):
            run = _on_rank(layer, conditions, styles, sent)
        # A leaf is held by the graph that begins there; what enters a layer is none.
        given = [_empty(value).requires_grad_(value.requires_grad) for value in inputs]
        entering = tuple(value.clone() if value.requires_grad else value for value in given)
        with recorder, autocast(), _noted(sent):
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
            owners = [owner_of(value.untyped_storage()) for value in entering]
            del entering, outputs, result, trained, given
            held = recorder.held()
            holds_input = bool(edges) and not all(map(is_gone, owners))
            if edges:
                gradients = [torch.empty(shape, dtype=dtype) for shape, dtype in shaped]
                torch.autograd.backward(edges, gradients)
    later = {number for each in recorder.operations[forward:] for number in each.reads}
    fused, low, done = conditions.fused, recorder.low, recorder.operations
    return Passes(
        forward=work(done[:forward], low[:forward], later | set(left), fused, BATCH),
        backward=work(done[forward:], low[forward:], set(), fused, BATCH),
        held=_by_sample(size for n, size in held.items() if n not in left and n not in entered),
        holds_input=holds_input,
        holds_output=any(number in held for number in left) and not set(left) & set(entered),
        passes_on=bool(set(left) & set(entered)),
        input_bytes=sum(entered.values()) / BATCH,
        output_bytes=sum(left.values()) / BATCH,
        most=most / BATCH,
        sent=sent,
        outputs=tuple(_meta(*each) for each in described),
    )


def _by_sample(sizes: Iterable[float]) -> tuple[float, float]:
    """What grows with the batch, for a sample, and what does not."""
    all_of_them = list(sizes)
    grows = sum(size for size in all_of_them if grows_with(size, BATCH))
    return grows / BATCH, sum(all_of_them) - grows


def _on_rank(
    layer: nn.Module, conditions: Conditions, styles: Mapping[str, str], sent: Sent
) -> Callable[..., Any]:
    """A copy of a layer as a rank has it."""
    copy = with_tensors_on(CPU, {"layer": layer})["layer"]
    copy.train()
    if conditions.dtype is not None:
        _to_type(copy, conditions.dtype)
    cut(copy, styles, conditions.tensor, sent)
    run = partial(_call, copy)
    if conditions.checkpointing == "none":
        return run
    options: dict[str, Any] = {"use_reentrant": False}
    if conditions.checkpointing != "full":
        policy = _policy(conditions.checkpointing == "every second")
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    return partial(checkpoint, run, **options)


def _to_type(layer: nn.Module, dtype: torch.dtype) -> None:
    for part in layer.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter.is_floating_point():
                low = nn.Parameter(parameter.detach().to(dtype), parameter.requires_grad)
                setattr(part, name, low)


def _call(layer: nn.Module, *inputs: Tensor) -> Any:
    return call_layer(layer, inputs)


def _policy(every_second: bool) -> Callable[..., CheckpointPolicy]:
    """Keep what is expensive: attention and matrix products, of which every second at will."""
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
def _noted(sent: Sent) -> Iterator[None]:
    """Note the keys and values of attention: what ranks of a context group gather."""
    attention = functional.scaled_dot_product_attention

    def noting(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        sent.keys += float(key.nbytes + value.nbytes)
        return attention(query, key, value, *args, **options)

    with patch.object(functional, "scaled_dot_product_attention", noting):
        yield


def on_a_piece(passes: Passes, size: int) -> Passes:
    """What a rank does that has one of so many pieces of every sequence.

    All is as much less, but for keys and values, which it gathers: it writes and reads them whole,
    and they wait whole for the backward pass.
    """
    sent = passes.sent.part(size)
    whole = sent.keys / BATCH
    by_sample, fixed = passes.held
    return passes._replace(
        forward=_piece(passes.forward, size, 2 * whole),
        backward=_piece(passes.backward, size, 4 * whole),
        held=(by_sample / size + whole * (1 - 1 / size), fixed),
        input_bytes=passes.input_bytes / size,
        output_bytes=passes.output_bytes / size,
        most=passes.most / size + whole,
        sent=sent,
        outputs=tuple(_shorter(value, size) for value in passes.outputs),
    )


def _piece(work: Work, size: int, more: float) -> Work:
    moved = work.bytes / size
    if len(moved):
        moved = moved + work.is_attention * more / max(1.0, float(work.is_attention.sum()))
    return work._replace(flops=work.flops / size, skipped=work.skipped / size, bytes=moved)


def _shorter(value: Tensor, size: int) -> Tensor:
    if value.ndim < 2:
        return value
    shape = torch.Size((value.shape[0], value.shape[1] // size, *value.shape[2:]))
    return _meta(shape, value.dtype, value.requires_grad)


def _empty(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device=CPU)


def _meta(shape: torch.Size, dtype: torch.dtype, requires_grad: bool) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta").requires_grad_(requires_grad)
