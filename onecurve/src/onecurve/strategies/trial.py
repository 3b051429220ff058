"""A forward pass on trial, before training: it leaves no buffer and no random number changed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from ..batch.random import draw_from
from ..errors import say, some_of
from .tolerance import tolerance


class Outcome(NamedTuple):
    """What came of a forward pass."""

    outputs: Any
    trained: set[int]
    """Parameters that a backward pass would reach, by id."""
    changed: list[str]
    """Names of the buffers that it changed."""


def outcome(forward: Callable[..., Any], samples: tuple[Tensor, ...], module: nn.Module) -> Outcome:
    """Call a function that uses a module, with random numbers that are always the same."""
    kept = [
        (part, name, f"{path}.{name}".lstrip("."), buffer, buffer.clone())
        for path, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    with isolate_rng(), torch.inference_mode(False), torch.enable_grad():
        draw_from(0)
        try:
            outputs = forward(*(sample.clone() for sample in samples))
            changed = [
                path
                for part, name, path, _, before in kept
                if not torch.equal(part.get_buffer(name), before)
            ]
        finally:
            for part, name, _, buffer, before in kept:
                part._buffers[name] = buffer
                buffer.detach().copy_(before)
    waiting = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    trained = {id(node.variable) for node in seen if hasattr(node, "variable")}
    return Outcome(outputs, trained, changed)


def set_modes(modes: Mapping[nn.Module, bool]) -> None:
    """Training or evaluation mode of each part: what somebody keeps in one of them stays there."""
    for part, training in modes.items():
        part.training = training


def same(a: Any, b: Any) -> bool:
    """Whether two outputs are equal but for rounding."""
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


def report_changed(strategy: str, part: str, changed: Sequence[str]) -> None:
    """Say which buffers will not be those of `single`.

    Args:
        strategy: Its name.
        part: What it cuts a batch into.
        changed: Names of buffers that training changes.
    """
    if changed:
        say(
            f"strategy={strategy}: {some_of(changed)} will differ from strategy=single: "
            f"they change with each {part}, as BatchNorm's statistics do"
        )
