"""Backward passes of manual optimization: `self.manual_backward`, as Lightning asks."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lightning.pytorch import LightningModule
from torch import Tensor, nn

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
        """The context of the strategy's backward pass; `inputs` as for ``loss.backward()``."""
        if inputs is not None:
            # DistributedDataParallel, FSDP2 and stages wait for the gradients of all parameters.
            raise UserError(
                f"strategy={self._strategy}: {type(self._task).__name__} calls "
                "self.manual_backward(loss, inputs=...), and ranks compute the gradients of all "
                "parameters; call self.toggle_optimizer(optimizer) before, which freezes those of "
                "the others, or use strategy=single"
            )
        self._is_under_way = True
        try:
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
