"""The training steps of a task: by a schedule that takes the loss, or around the task's own.

PyTorch's schedules beside GPipe start the backward pass of one micro-batch before the forward pass
of the next has ended. For that they take the loss of each by itself, ``loss(outputs, targets)``.
The first step of a fit runs as GPipe, which asks for nothing (`fill_drain.py`), and shows whether
that, as a mean over micro-batches, is what the step returns; if so, the schedule does the rest.
Later steps are compared, too: were it another loss one day, a curve would be logged that nothing
was trained on. The comparison stays on the device, where nobody waits for it; who reads it must. On
a CPU that costs nothing, and a mistake ends the very step. On a GPU it is read where something is
logged, at the end of an epoch and before weights are saved.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor

from ...compat.of_lightning import logs_now
from ...errors import UserError, in_short, say
from .fill_drain import order
from .passes import Passes
from .remote_parameters import layers_used_outside_network
from .schedule import relative_weights, split_targets
from .stage import Tensors

NO_TARGETS = object()


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
        """Remember whether they differ, and read it where that costs nothing."""
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
        """Wait for the device, and say what was found."""
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


class Steps:
    """Runs steps of a task whose network calls pass through a pipeline.

    Args:
        module: The task.
        passes: The pipeline.
        check: Compares losses.
        agree: Whether all ranks say yes.
        why_not: Why no schedule can take the loss; None if one may.

    Attributes:
        inputs: What entered the network first; whoever has looked at it may empty it.
    """

    def __init__(
        self,
        module: LightningModule,
        passes: Passes,
        check: LossCheck,
        agree: Callable[[bool], bool],
        why_not: str | None = None,
    ) -> None:
        self.module = module
        self.passes = passes
        self.check = check
        self.agree = agree
        self.inputs: Tensors | None = None
        # None until a first step has shown it.
        self._schedule_takes_loss: bool | None = False if passes.schedules.name == "gpipe" else None
        self._known_why_not = why_not
        self._is_in_step = False
        self._called: list[tuple[Tensors, Tensors]] = []
        self._losses: Tensor | None = None
        self._targets: Any = None
        self._scale = 1.0

    @property
    def ran_by_schedule(self) -> bool:
        """Whether a schedule that takes the loss has run in the step under way."""
        return self._losses is not None

    def run(self, step: Callable[[], Any], targets: Any, scale: float, weight: float) -> Any:
        """Run a training step.

        Args:
            step: The task's own.
            targets: Of the batch, or NO_TARGETS where a batch is not (inputs, targets).
            scale: What 16-bit training multiplies the loss by.
            weight: What this rank's loss is multiplied by among those of other samples.

        Returns:
            What the step returned, with a loss that has a backward pass.
        """
        self.passes.calls, self._losses = 0, None
        self._targets, self._scale = targets, scale * weight
        self._is_in_step = True
        try:
            result = step()
        finally:
            self._is_in_step = False
            called, self._called = self._called, []
        loss = result.get("loss") if isinstance(result, dict) else result
        if not isinstance(loss, Tensor):
            return result
        if loss.is_meta:
            raise layers_used_outside_network(self.module, self.passes.network)
        if self._losses is None:
            if self._schedule_takes_loss is None:
                self._decide(loss, called)
            return result
        self.check.compare(loss, self._losses)
        attached = self.passes.stash.attach(loss, scale)
        return {**result, "loss": attached} if isinstance(result, dict) else attached

    def forward(self, inputs: Tensors) -> Tensors:
        """What a call of the network returns."""
        trains = self._is_in_step and torch.is_grad_enabled()
        takes_loss = trains and self._schedule_takes_loss and self._targets is not NO_TARGETS
        if takes_loss and self.passes.is_batch(inputs):
            if self._losses is not None:
                raise UserError(
                    "strategy=pipeline: training_step calls its network more than once, and did "
                    "not at first; use strategy.schedule=gpipe, which takes any number"
                )
            outputs, self._losses = self.passes.train(inputs, self._targets, self._scale)
            return outputs
        outputs = self.passes.forward(inputs)
        if trains and self.inputs is None:
            self.inputs = inputs
        if trains and self._schedule_takes_loss is None:
            self._called.append((inputs, tuple(output.detach() for output in outputs)))
        return outputs

    def plan(self, inputs: Tensors) -> tuple[str, dict[int, list[Any]], int]:
        """For a batch the schedule's name, each rank's actions in order, and its micro-batches."""
        if self._schedule_takes_loss:
            with torch.enable_grad():
                schedule, count = self.passes.schedules.get(self.passes.sequences.cut(inputs))
            return self.passes.schedules.name, schedule.pipeline_order, count
        with torch.enable_grad():
            count = self.passes.chunks(inputs)
        return "gpipe", order(self.passes.stages.owner, count), count

    def _decide(self, loss: Tensor, called: Sequence[tuple[Tensors, Tensors]]) -> None:
        """See whether a schedule can train on what a step returned."""
        why = self._why_not(loss, called)
        self._schedule_takes_loss = self.agree(why is None)
        schedule = self.passes.schedules.name
        if not self._schedule_takes_loss and dist.get_rank() == 0:
            say(
                f"strategy=pipeline: {why or 'it cannot on other ranks'}, so "
                f"schedule={schedule} cannot take the loss of each micro-batch; schedule=gpipe "
                "runs instead, as exact, and keeps the activations of all micro-batches"
            )

    def _why_not(self, loss: Tensor, called: Sequence[tuple[Tensors, Tensors]]) -> str | None:
        name = type(self.module).__name__
        if self._known_why_not is not None:
            return self._known_why_not
        if not self.module.automatic_optimization:
            return f"{name} optimizes manually"
        if len(called) != 1:
            return f"{name}.training_step does not call its network once"
        if self._targets is NO_TARGETS:
            return f"a batch is not (inputs, targets) and {name} has no method prepare(batch)"
        if not callable(getattr(self.module, "loss", None)):
            return f"{name} has no loss(outputs, targets)"
        placed = self.passes.stages.placement.is_placed
        trained = (path for path, p in self.module.named_parameters() if p.requires_grad)
        if beside := [path for path in trained if not placed(path)]:
            return f"{name} trains parameters beside its layers, such as {beside[0]}"
        ((inputs, outputs),) = called
        if not self.passes.is_batch(inputs):
            return "what enters the network is not the batch"
        try:
            losses = self._of_microbatches(outputs, len(inputs[0]))
        except Exception as error:  # whatever a loss that takes something else does
            return f"{name}.loss fails on the network's outputs ({in_short(error, 80)})"
        if self.check.differs(loss, losses):
            return (
                f"{name}.training_step returned {loss.item():.6g}, and loss(outputs, targets) is "
                f"{losses[0].item():.6g} on average over micro-batches"
            )
        return None

    @torch.no_grad()
    def _of_microbatches(self, outputs: Tensors, size: int) -> Tensor:
        """The mean over micro-batches of the loss, and of its size, in float64."""
        schedules = self.passes.schedules
        count = schedules.split(size)[1]
        parts = split_targets(self._targets, count, size)
        losses = []
        for number, weight in enumerate(relative_weights(parts, schedules.weigh)):
            rows = slice(number * size // count, (number + 1) * size // count)
            given = tuple(output[rows] for output in outputs)
            if weight:
                loss = self.passes.loss(given[0] if len(given) == 1 else given, parts[number])
                losses.append(loss.double() * weight)
        value = torch.stack(losses) if losses else torch.zeros(1, dtype=torch.float64)
        return torch.stack([value.sum() / count, value.abs().sum() / count])
