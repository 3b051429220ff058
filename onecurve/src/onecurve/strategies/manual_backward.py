"""Backward passes that a task starts in its step: ``loss.backward()`` or `manual_backward`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..compat.patching import replaced

PYTORCH_BACKWARD = torch.autograd.backward


@contextmanager
def manual_backward(strategy: Strategy, weigh: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within this context, let ``loss.backward()`` do what the strategy's `backward` does.

    `weigh` multiplies a loss by the weight of this rank's share. Lightning's hooks and its loss
    scaling are left out, as in a plain ``loss.backward()``.
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
    """Within this context, restore PyTorch's ``loss.backward()``, and support its `inputs`.

    DistributedDataParallel, FSDP2 and pipeline stages wait for the gradients of all parameters.
    So the pass computes all of them, and gradients of parameters that are not among `inputs` are
    restored afterwards.
    """
    others = [] if inputs is None else _parameters_beside(module, inputs)
    with gradients_aside(others), replaced(torch.autograd, "backward", PYTORCH_BACKWARD):
        yield


@contextmanager
def gradients_aside(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Within this context, start without the parameters' gradients; restore them afterwards."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def _parameters_beside(module: nn.Module, inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The parameters of a module that are not among the inputs.

    The inputs may be gathered parameters of FSDP2 or their shards, so they are compared by name.
    """
    given = set(map(id, [inputs] if isinstance(inputs, Tensor) else inputs))
    names = {name for name, parameter in module.named_parameters() if id(parameter) in given}
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()  # from here on the parameters are shards, which hold the gradients
    return [
        parameter
        for name, parameter in module.named_parameters()
        if name not in names and id(parameter) not in given
    ]
