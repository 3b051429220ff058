"""How layers are called one after the other, and whether that is what `forward` does."""

from inspect import Parameter, signature
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from ...errors import UserError
from ..seeding import draw_from
from .checks import INSTEAD
from .tolerance import tolerance

Tensors = tuple[Tensor, ...]


def call_layer(layer: nn.Module, inputs: Tensors) -> Any:
    """Call a layer with what the one before it returned.

    Several tensors become its arguments; where it takes one argument they are that, a tuple, as
    nn.Sequential passes it on.
    """
    return layer(inputs) if len(inputs) > 1 and _takes_one(layer) else layer(*inputs)


def run_layers(layers: list[nn.Module], inputs: Tensors) -> Any:
    """Pass tensors through layers, one after the other."""
    outputs: Any = inputs
    for layer in layers:
        outputs = call_layer(layer, outputs if isinstance(outputs, tuple) else (outputs,))
    return outputs


def _takes_one(layer: nn.Module) -> bool:
    kinds = [parameter.kind for parameter in signature(layer.forward).parameters.values()]
    named = [kind for kind in kinds if kind in NAMED]
    return len(named) == 1 and Parameter.VAR_POSITIONAL not in kinds


NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def check_composition(
    module: LightningModule, layers: dict[str, nn.Module], inputs: Tensors
) -> None:
    """Compare `forward` with its layers one after the other, for two samples.

    In evaluation and in training mode, where a branch of `forward` may be another, both with the
    same random numbers; what is trained must be trained by both. No buffer and no random number
    is left changed.

    Raises:
        UserError: If the results differ.
    """
    name, sequence = type(module).__name__, list(layers.values())
    # Of a single sample BatchNorm can take no statistics.
    samples = tuple(torch.cat([value[:2], value[:2]])[:2].cpu() for value in inputs)
    modes = {part: part.training for part in module.modules()}
    try:
        for training in (False, True):
            module.train(training)
            whole, trains = _outcome(module.forward, samples, module)
            composed, also = _outcome(lambda *given: run_layers(sequence, given), samples, module)
            if isinstance(whole, tuple) and len(whole) == 1:
                raise UserError(
                    f"strategy=pipeline: {name}.forward returns a tuple of one tensor; return the "
                    "tensor itself, or use strategy=fsdp"
                )
            if not _same(whole, composed) or trains != also:
                mode = "training" if training else "evaluation"
                raise UserError(
                    f"strategy=pipeline: in {mode} mode {name}.forward gives something else than "
                    f"its layers {', '.join(layers)} one after the other; {INSTEAD}"
                )
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"strategy=pipeline: {name}.forward is not the composition of its layers "
            f"{', '.join(layers)} ({reason}); {INSTEAD}"
        ) from error
    finally:
        for part, was_training in modes.items():
            part.training = was_training


def _outcome(forward: Any, samples: Tensors, module: nn.Module) -> tuple[Any, set[int]]:
    """What a function of the samples returns, and the parameters that it would train, by id."""
    kept = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    with isolate_rng(), torch.inference_mode(False), torch.enable_grad():
        draw_from(0)
        try:
            outputs = forward(*(sample.clone() for sample in samples))
        finally:
            for part, name, buffer, before in kept:
                part._buffers[name] = buffer
                buffer.detach().copy_(before)
    waiting = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return outputs, {id(node.variable) for node in seen if hasattr(node, "variable")}


def _same(a: Any, b: Any) -> bool:
    (first, structure), (second, other) = tree_flatten(a), tree_flatten(b)
    return structure == other and all(
        isinstance(x, Tensor) and isinstance(y, Tensor) and _close(x, y)
        for x, y in zip(first, second, strict=True)
    )


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    sizes = a.detach().abs().where(a.isfinite(), 0).flatten()
    most = tolerance(a.dtype) * float(sizes.max()) if len(sizes) else 0.0
    return torch.allclose(a, b, rtol=0, atol=most, equal_nan=True)
