"""Whether the loss of a step is the one that a schedule can train on, and stays it.

A schedule takes gradients of ``loss(outputs, targets)``, micro-batch by micro-batch; what the step
returns is logged. The first step of a fit shows whether they are the same, before any schedule has
run. Later steps are compared, too: were it another loss one day, a curve would be logged that
nothing was trained on.

The comparison stays on the device, where nobody waits for it; who reads it must. On a CPU that
costs nothing, and a mistake ends the very step. On a GPU it is read where something is logged, at
the end of an epoch and before weights are saved.
"""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ...compat.of_lightning import logs_now
from ...errors import UserError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
IN_16_BITS = 2e-2


def tolerance(dtype: torch.dtype) -> float:
    """How far two computations of a value may be apart: some thousand times its rounding."""
    return TOLERANCE.get(dtype, IN_16_BITS)


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

    def differs(self, returned: Tensor, losses: Tensor) -> Tensor:
        """Whether a step's loss is another than the mean over micro-batches, as a tensor.

        Args:
            returned: The step's loss, a scalar.
            losses: Of the micro-batches, in float64: the mean, and the mean of their sizes. The
                difference is measured by the latter, for losses of both signs cancel out.
        """
        relative = IN_16_BITS if self.mixed else tolerance(returned.dtype)
        # What is below the smallest number of the type is lost on the way, and no mistake.
        smallest = torch.finfo(returned.dtype).tiny
        value, (mean, size) = returned.detach().double().reshape(()), losses.unbind()
        wrong = (value - mean).abs() > relative * size + smallest
        # The loss itself shows what is not finite; see also callbacks=nan_guard.
        return wrong & value.isfinite() & mean.isfinite()

    def compare(self, returned: Tensor, losses: Tensor) -> None:
        """Remember whether they differ, and read it where that costs nothing.

        Raises:
            UserError: If the step's loss depends on parameters in another way than by the network;
                its gradients would be lost.
        """
        if returned.requires_grad:
            raise UserError(_another(self.module, "depends on parameters beside its network"))
        value, mean = returned.detach().double().reshape(()), losses[0]
        step = torch.full_like(mean, self.module.trainer.global_step)
        found = torch.stack([self.differs(returned, losses).double(), step, value, mean])
        if self._found is not None:
            found = torch.where(self._found[0] > 0, self._found, found)
        self._found = found
        trainer = self.module.trainer
        logs = logs_now(trainer)
        if self.at_once or logs or trainer.is_last_batch:
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
            what = f"returned {value:.10g} in step {step:.0f}, and {mean:.10g} was trained on"
            raise UserError(_another(self.module, what))


def _another(module: LightningModule, what: str) -> str:
    return (
        f"strategy=pipeline: {type(module).__name__}.training_step {what}, which is the mean of "
        "loss(outputs, targets) over micro-batches and was the step's loss at first; put all of "
        "the loss into it, or use strategy.schedule=gpipe, which takes any"
    )
