"""Whether a task's loss is a mean over what counts: only then is it the mean of the ranks' losses.

Looked at while the first training step computes it: the loss of this rank's samples against the
mean of the losses of their halves, by samples or by the task's `weight`. A task without a method
``loss(outputs, targets)`` is not looked at, nor is a loss that takes the samples of all ranks, or
that calls a network of the task (a discriminator): all ranks gather its weights together.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import say
from .redirect import replaced
from .tolerance import tolerance
from .weight import weight_of


@contextmanager
def looked_at(
    module: LightningModule, strategy: str, takes_all: Callable[[], bool], says: bool
) -> Iterator[None]:
    """Look at the calls of ``module.loss`` meanwhile, and say in a line if it is no mean.

    Args:
        module: The task.
        strategy: What the line names.
        takes_all: Whether the loss took the samples of all ranks.
        says: Whether this rank says it; those that share layers with it look, too.
    """
    loss: Any = getattr(module, "loss", None)
    if not callable(loss):
        yield
        return
    findings: list[str] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        with _calls_of(module) as called:
            whole = loss(*arguments, **named)
        if not findings and not called and isinstance(whole, Tensor) and not takes_all():
            findings.extend(_finding(module, loss, (arguments, named), whole))
        return whole

    with replaced(module, "loss", watched):
        yield
    for finding in findings if says else ():
        name = type(module).__name__
        say(
            f"strategy={strategy}: {name}.loss is no mean over samples: {finding}; "
            "what is trained on is the mean of the ranks' losses, not what strategy=single takes; "
            f"{WAYS_OUT}, or say strategy.check_loss=false"
        )


WAYS_OUT = (
    "add a method weight(targets) where something else than samples counts, take "
    "self.trainer.strategy.all_samples(tensor) where they are compared with each other"
)


@contextmanager
def _calls_of(module: LightningModule) -> Iterator[list[nn.Module]]:
    """Modules of the task with parameters of their own that are called meanwhile."""
    called: list[nn.Module] = []
    hooks = [
        part.register_forward_pre_hook(lambda part, _: called.append(part))
        for part in module.modules()
        if next(part.parameters(recurse=False), None) is not None
    ]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def _finding(module: LightningModule, loss: Any, arguments: Any, computed: Tensor) -> Iterator[str]:
    whole = computed.detach()
    sizes = {leaf.shape[:1] for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
    number = next(iter(sizes))[0] if len(sizes) == 1 and next(iter(sizes)) else 0
    if number < 2 or whole.ndim:
        return
    cut = number // 2
    parts = [(slice(None, cut), cut), (slice(cut, None), number - cut)]
    total, counted, size = 0.0, 0.0, abs(float(whole))
    with torch.no_grad():
        for part, count in parts:
            args, named = tree_map_only(Tensor, itemgetter(part), arguments)
            targets = args[1] if len(args) > 1 else named.get("targets")
            weight = weight_of(module, targets)
            counts = float(count if weight is None else weight)
            if counts:
                value = float(loss(*args, **named))
                total, counted, size = total + value * counts, counted + counts, size + abs(value)
    mean = total / counted if counted else 0.0
    if abs(float(whole) - mean) > tolerance(whole.dtype) * size:
        yield f"{float(whole):.6g} for {number}, {mean:.6g} as the mean of two halves"
