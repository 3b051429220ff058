"""A backward pass that a task starts in its own step: ``loss.backward()`` or `manual_backward`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from .redirect import replaced

PYTORCHS = torch.autograd.backward


@contextmanager
def manual_backward(strategy: Strategy, weigh: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let ``loss.backward()`` be what the strategy's own is meanwhile, but for hooks and scaling.

    Args:
        strategy: Of the step.
        weigh: Weighs a loss by this rank's share.
    """
    task = strategy.lightning_module
    assert task is not None

    def backward(losses: Any, *args: Any, inputs: Any = None, **kwargs: Any) -> None:
        losses = [losses] if isinstance(losses, Tensor) else losses
        weighed = [weigh(loss) for loss in losses]
        with pytorchs_backward(task, inputs):
            strategy.pre_backward(losses)
            torch.autograd.backward(weighed, *args, **kwargs)
            strategy.post_backward(losses)

    with replaced(torch.autograd, "backward", backward):
        yield


@contextmanager
def pytorchs_backward(
    module: nn.Module, inputs: Tensor | Sequence[Tensor] | None
) -> Iterator[None]:
    """Let ``loss.backward()`` be PyTorch's own again, and leave gradients in some tensors alone.

    DistributedDataParallel, FSDP2 and the stages of a pipeline wait for the gradients of all
    parameters. So the pass is one for all of them, and what the others had is put back.

    Args:
        module: The task.
        inputs: What ``loss.backward(inputs=...)`` was given.
    """
    others = [] if inputs is None else _parameters_beside(module, inputs)
    before = [parameter.grad for parameter in others]
    for parameter in others:
        parameter.grad = None
    try:
        with replaced(torch.autograd, "backward", PYTORCHS):
            yield
    finally:
        for parameter, gradient in zip(others, before, strict=True):
            parameter.grad = gradient


def _parameters_beside(module: nn.Module, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The parameters of a module that are not among these, which may be gathered or shards.

    FSDP2 frees what is gathered once it knows of the loss.
    """
    given = set(map(id, [inputs] if isinstance(inputs, Tensor) else inputs))
    names = {name for name, parameter in module.named_parameters() if id(parameter) in given}
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    return [
        parameter
        for name, parameter in module.named_parameters()
        if name not in names and id(parameter) not in given
    ]
