"""Whether a task's loss is a mean over samples: only then is it the mean of the ranks' losses.

Looked at while the first training step computes it: the loss of this rank's samples against the
mean of the losses of their halves. A task without a method ``loss(outputs, targets)`` is not
looked at.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import say
from .tolerance import tolerance


@contextmanager
def looked_at(module: LightningModule, strategy: str) -> Iterator[None]:
    """Look at the calls of ``module.loss`` meanwhile, and say in a line if it is no mean.

    Args:
        module: The task.
        strategy: What the line names.
    """
    loss: Any = getattr(module, "loss", None)
    if not callable(loss):
        yield
        return
    findings: list[str] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        whole = loss(*arguments, **named)
        if not findings and isinstance(whole, Tensor):
            findings.extend(_finding(loss, (arguments, named), whole))
        return whole

    module.loss = watched  # type: ignore[assignment]
    try:
        yield
    finally:
        del module.loss
    for finding in findings:
        name = type(module).__name__
        say(
            f"strategy={strategy}: {name}.loss is no mean over samples: {finding}; "
            "what is trained on is the mean of the ranks' losses, not what strategy=single takes"
        )


def _finding(loss: Any, arguments: Any, computed: Tensor) -> Iterator[str]:
    whole = computed.detach()
    sizes = {leaf.shape[:1] for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
    number = next(iter(sizes))[0] if len(sizes) == 1 and next(iter(sizes)) else 0
    if number < 2 or whole.ndim:
        return
    cut = number // 2
    parts = [(slice(None, cut), cut), (slice(cut, None), number - cut)]
    mean, size = 0.0, abs(float(whole))
    with torch.no_grad():
        for part, count in parts:
            args, named = tree_map_only(Tensor, itemgetter(part), arguments)
            value = float(loss(*args, **named))
            mean += value * count / number
            size += abs(value)
    if abs(float(whole) - mean) > tolerance(whole.dtype) * size:
        yield f"{float(whole):.6g} for {number}, {mean:.6g} as the mean of two halves"
