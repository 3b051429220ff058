"""Backward passes of manual optimization: `self.manual_backward`, as Lightning asks."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..errors import UserError


class ManualBackward:
    """Rejects gradients of a task that come from another backward pass than the strategy's.

    ``loss.backward()`` would not weight the loss by this rank's share, and under
    DistributedDataParallel average nothing.
    """

    def __init__(self, task: nn.Module, strategy: str) -> None:
        self._task, self._strategy = task, strategy
        self._is_under_way = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the gradients that backward passes add to parameters in this context."""
        with ExitStack() as stack:
            for parameter in self._task.parameters():
                if parameter.is_meta or not parameter.is_floating_point():
                    continue
                trains = parameter.requires_grad
                parameter.requires_grad_()  # a frozen one takes no hook, and may be trained later
                hook = parameter.register_post_accumulate_grad_hook(self._check)  # type: ignore[no-untyped-call]
                stack.callback(hook.remove)
                parameter.requires_grad_(trains)
            yield

    def _check(self, _: Tensor) -> None:
        if not self._is_under_way:
            raise UserError(
                f"strategy={self._strategy}: {type(self._task).__name__} calls loss.backward(), "
                "which does not know this rank's share of the batch; call "
                "self.manual_backward(loss), or use strategy=single"
            )

    @contextmanager
    def runs(self, inputs: Tensor | Sequence[Tensor] | None) -> Iterator[None]:
        """The context of the strategy's backward pass; `inputs` as for ``loss.backward()``.

        DistributedDataParallel, FSDP2 and pipeline stages wait for the gradients of all parameters.
        So the pass computes all of them, and gradients of parameters that are not among `inputs`
        are restored afterwards.
        """
        others = [] if inputs is None else _parameters_beside(self._task, inputs)
        self._is_under_way = True
        try:
            with gradients_aside(others):
                yield
        finally:
            self._is_under_way = False


def manual_backward(task: LightningModule, strategy: str) -> ManualBackward | None:
    """What watches the backward passes of a task that optimizes manually."""
    return None if task.automatic_optimization else ManualBackward(task, strategy)


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
