"""Whether a training step returns the loss that the schedule has trained on, in every batch.

A schedule takes gradients of ``loss(outputs, targets)``, micro-batch by micro-batch; what the step
returns is logged. Were it another loss, a curve would be logged that nothing was trained on.

The comparison stays on the device, where nobody waits for it; who reads it must. On a CPU that
costs nothing, and a mistake ends the very step. On a GPU it is read for the first batch, where
something is logged, at the end of an epoch and before weights are saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ...errors import UserError
from ..tolerance import IN_16_BITS, tolerance


class LossCheck:
    """Remembers the first step whose loss is not the one that was trained on.

    Args:
        module: The task.
        mixed: Whether autocast computes in 16 bits.
        at_once: Whether to read every comparison.
    """

    def __init__(self, module: LightningModule, *, mixed: bool, at_once: bool) -> None:
        self.module = module
        self.mixed = mixed
        self.at_once = at_once
        self._found: Tensor | None = None
        self._read_before = False

    def compare(self, returned: Tensor, losses: Tensor) -> None:
        """Compare what the step returned with the mean loss over micro-batches.

        Args:
            returned: The step's loss, a scalar.
            losses: Of the micro-batches, in float64: the mean, and the mean of their sizes. The
                difference is measured by the latter, for losses of both signs cancel out.

        Raises:
            UserError: If the step's loss depends on parameters in another way than by `forward`;
                its gradients would be lost.
        """
        if returned.is_meta or returned.requires_grad:
            # What was logged of it has no memory either, which Lightning would move as it ends.
            results = self.module.trainer._results
            if results is not None:
                results.clear()
            raise UserError(_beside_forward(self.module))
        relative = IN_16_BITS if self.mixed else tolerance(returned.dtype)
        # What is below the smallest number of the type is lost on the way, and no mistake.
        smallest = torch.finfo(returned.dtype).tiny
        value, (mean, size) = returned.detach().double().reshape(()), losses.unbind()
        wrong = (value - mean).abs() > relative * size + smallest
        # The loss itself shows what is not finite; see also callbacks=nan_guard.
        wrong &= value.isfinite() & mean.isfinite()
        step = torch.full_like(mean, self.module.trainer.global_step)
        found = torch.stack([wrong.double(), step, value, mean])
        if self._found is not None:
            found = torch.where(self._found[0] > 0, self._found, found)
        self._found = found
        if self._should_read():
            self.read()

    def read(self) -> None:
        """Wait for the device, and say what was found.

        Raises:
            UserError: If a step returned another loss than was trained on.
        """
        if self._found is None:
            return
        wrong, step, value, mean = self._found.tolist()
        self._found = None
        if wrong:
            raise UserError(
                f"strategy=pipeline: in step {step:.0f} {type(self.module).__name__}.training_step "
                f"returned {value:.10g}, but loss(outputs, targets), which is trained on, is "
                f"{mean:.10g} over the micro-batches; {ALL_OF_IT}"
            )

    def _should_read(self) -> bool:
        trainer = self.module.trainer
        first, self._read_before = not self._read_before, True
        logs = trainer._logger_connector.should_update_logs
        return first or self.at_once or logs or trainer.is_last_batch


ALL_OF_IT = (
    "a step must return exactly self.loss(self(inputs), targets): put all of the loss into "
    "loss(outputs, targets), a mean over samples, or use strategy=fsdp"
)


@contextmanager
def no_other_parameters(module: LightningModule) -> Iterator[None]:
    """Say in a line that a step used parameters which another rank holds, such as by logging them.

    Raises:
        UserError: If it did.
    """
    try:
        yield
    except NotImplementedError as error:
        if "meta tensor" in str(error):
            raise UserError(_beside_forward(module)) from None
        raise


def _beside_forward(module: LightningModule) -> str:
    return (
        f"strategy=pipeline: the loss that {type(module).__name__}.training_step returned depends "
        f"on parameters in another way than through self(inputs); {ALL_OF_IT}"
    )
