"""The steps of a task, in which a call of its network passes a batch through the pipeline.

PyTorch's schedules beside GPipe start the backward pass of one micro-batch before the forward pass
of the next has ended. So they run where the task declares the loss of each, by a method
``loss(outputs, targets)``; any other task runs as GPipe (`fill_drain.py`), which asks for nothing.
What the step returns is compared with the mean over micro-batches: were it another loss, a curve
would be logged that nothing was trained on.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch import Tensor

from ...compat.of_torch import hooked
from ...errors import UserError, in_short, say
from ..collectives import with_hook
from ..context_parallel import run_on_full, run_on_shards
from ..prepare import Prepared, weight_of
from ..step import StepContext
from ..unsupported import reject_without_gradient
from .fill_drain import through_stages
from .gradients import Stash, layers_used_outside_network, scaler_of
from .partition import Stages
from .schedule import Schedules
from .shapes import Tensors

# How far two computations of a value may be apart: some thousand times its rounding.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
IN_16_BITS = 2e-2


@dataclass(eq=False)
class Runner:
    """Runs steps of a task whose network calls pass through a pipeline."""

    task: LightningModule
    stages: Stages
    """Those of the network that steps call."""
    schedule: str
    microbatches: int
    """The wanted number."""
    precision: Precision
    placed: Callable[[str], bool]
    """Whether a parameter is in a layer, by its name."""

    loss_check: "LossCheck" = field(init=False)
    """The comparison of losses in the current fit."""
    inputs: Tensors | None = None
    """The inputs of the first pass, until they have been reported."""
    takes_loss: bool = False
    """Whether the loss of a micro-batch is being computed."""
    by_schedule: bool | None = None
    """Whether a schedule takes the loss; None before the first step of a fit."""
    _is_in_step: bool = False
    _has_said: bool = False
    _calls: int = 0
    _losses: Tensor | None = None
    _rows: int | None = None
    _prepared: Prepared | None = None
    _scale: float = 1.0

    def __post_init__(self) -> None:
        self.stash = Stash(self.stages.parameters())
        self.schedules = Schedules(
            self.schedule,
            self.microbatches,
            self.stages,
            partial(run_on_full, self._loss),
            partial(weight_of, self.task),
        )

    def begin(self) -> None:
        """Begin a fit or an evaluation."""
        self.loss_check = LossCheck(self.task, isinstance(self.precision, MixedPrecision))
        self.by_schedule, self._has_said = None, False

    @property
    def ran_by_schedule(self) -> bool:
        """Whether a schedule that takes the loss has run in the current step."""
        return self._losses is not None

    def run(self, context: StepContext, step: Callable[[], Any]) -> Any:
        """Run a step of the task; a training step returns a loss that has a backward pass."""
        self._rows, self._prepared = context.rows, context.prepared
        if context.name != "training_step":
            return step()
        self._calls, self._losses = 0, None
        if self.by_schedule is None:
            # Not before: hooks of a callback count, too.
            why = "" if self.schedule == "gpipe" else self._why_gpipe()
            self.by_schedule = self.schedule != "gpipe" and why is None
            # Where nobody asks for a schedule, nor declares a loss for one, gpipe needs no line.
            declares = self.task.automatic_optimization and _declares_loss(self.task)
            if why and (self.schedule != "1f1b" or declares):
                self._say(why)
        # What 16-bit training multiplies the loss by, a schedule must, too.
        scaler = scaler_of(self.precision)
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        # FSDP2 averages the gradients of a schedule within it, so they are weighted before.
        self._scale = scale * context.weight
        self._is_in_step = True
        try:
            result = step()
        finally:
            self._is_in_step = False
        loss = result.get("loss") if isinstance(result, dict) else result
        if not isinstance(loss, Tensor):
            return result
        if loss.is_meta:
            raise layers_used_outside_network(self.task, self.stages.network)
        if self._losses is None:
            return result
        self.loss_check.compare(loss, self._losses)
        attached = self.stash.attach(loss, scale)
        return {**result, "loss": attached} if isinstance(result, dict) else attached

    def _why_gpipe(self) -> str | None:
        """Why a schedule cannot take the loss; None if it can."""
        name = type(self.task).__name__
        if self.stages.network.blocks is not None:
            return f"{self.stages.network.blocks.path} is called block by block"
        if not _declares_loss(self.task):
            return f"{name} has no method loss(outputs, targets)"
        if not self.task.automatic_optimization:
            return f"{name} optimizes manually"
        if names := hooked(self.task):
            return f"{names[0]} has a hook (register_hook), which would see each micro-batch"
        trained = (path for path, p in self.task.named_parameters() if p.requires_grad)
        if unplaced := [path for path in trained if not self.placed(path)]:
            return f"{name} trains parameters beside its layers, such as {unplaced[0]}"
        if self._prepared is None:
            return f"a batch is not (inputs, targets) and {name} has no method prepare(batch)"
        return None

    def _say(self, why: str) -> None:
        if dist.get_rank() == 0 and not self._has_said:
            say(
                f"strategy=pipeline: {why}, so schedule={self.schedule} cannot take the loss of "
                "each micro-batch; schedule=gpipe runs instead, which is as exact but keeps the "
                "activations of all micro-batches"
            )
        self._has_said = True

    def forward(
        self, inputs: Tensors, stages: Stages | None = None, whole: bool = False
    ) -> Tensors:
        """Replaces `forward` of the network; all ranks get its outputs.

        Args:
            inputs: Those of the network, for the batch.
            stages: The stages, if it is not the first network of the task.
            whole: Whether the batch cannot be divided.
        """
        trains = self._is_in_step and torch.is_grad_enabled()
        if trains and self.inputs is None:
            self.inputs = inputs
        needs_gradient = any(value.requires_grad for value in inputs)
        if trains and self.by_schedule and self._is_batch(inputs):
            if self._losses is not None:
                raise UserError(
                    f"strategy=pipeline: {type(self.task).__name__}.training_step calls its "
                    "network more than once; use strategy.schedule=gpipe, which takes any number"
                )
            if not needs_gradient:
                outputs, self._losses = self._train(inputs)
                # Later steps are compared by value alone.
                first = self.loss_check.is_first
                return tuple(map(_with_gradient, outputs)) if first else outputs
        if trains and self.by_schedule:
            what = "needs a gradient" if needs_gradient else "is not certainly the batch"
            self._say(f"what enters the network {what}")
        return self.fill_drain(inputs, 1 if whole else self._chunks(inputs), stages)

    def fill_drain(self, inputs: Tensors, chunks: int, stages: Stages | None = None) -> Tensors:
        """The outputs of the network; differentiable."""
        used = stages or self.stages

        def forward(*shards: Tensor) -> Tensors:
            return through_stages(used, shards, chunks)

        with self._own_random_numbers():
            return run_on_shards(forward, inputs, used.ranks.context_group)  # type: ignore[no-any-return]

    def plan(self, inputs: Tensors) -> tuple[str, int]:
        """The name of the schedule for a batch, and the number of micro-batches."""
        if self.by_schedule:
            return self.schedules.split(len(inputs[0]))
        with torch.enable_grad():
            return "gpipe", self._chunks(inputs)

    def _chunks(self, inputs: Tensors) -> int:
        """The number of micro-batches: one, if the first dimension is not the batch."""
        size = len(inputs[0]) if self._is_batch(inputs) else 0
        if torch.is_grad_enabled() and size:
            return self.schedules.split(size)[1]
        return max(1, min(self.microbatches, size))

    def _is_batch(self, inputs: Tensors) -> bool:
        """Whether the first dimension of all inputs is certainly that of the samples.

        If there are as many positions as samples, either of them may come first.
        """
        rows = self._rows
        return rows is not None and all(
            value.shape[:1] == (rows,)
            and not (
                value.shape[1:2] == (rows,) and (value.ndim > 2 or not value.is_floating_point())
            )
            for value in inputs
        )

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let layers draw from (seed, batch, rank, call), and leave the common generator untouched.

        The task's steps run on every rank and must draw the same there, whatever the layers draw.
        """
        batches = self.task.trainer.fit_loop.epoch_loop.total_batch_idx
        # Ranks that share a layer draw alike.
        ranks = self.stages.ranks
        rank = ranks.rank - ranks.coordinates.tensor
        seed = (torch.initial_seed(), max(batches, 0), rank, self._calls)
        self._calls += 1
        devices = [ranks.device] if ranks.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
            torch.manual_seed(int(state[0]) % 2**63)
            yield

    # By a schedule that takes the loss

    def _train(self, inputs: Tensors) -> tuple[Tensors, Tensor]:
        """Forward and backward pass of a batch by a schedule; the gradients are in the stash.

        Returns:
            On every rank the outputs, detached; and, in float64, the mean of the micro-batches'
            losses and the mean of their absolute values.
        """
        stages, losses = self.stages, None
        assert self._prepared is not None
        targets = self._prepared.targets

        def forward_backward(*shards: Tensor) -> Tensors:
            nonlocal losses
            outputs, losses = self.schedules.forward_backward(shards, targets, self._scale)
            return stages.share_outputs(tuple(each.detach() for each in outputs), shards)

        # The schedule enters autocast itself, around forward passes alone.
        no_autocast = torch.autocast(stages.ranks.device.type, enabled=False)
        with no_autocast, torch.enable_grad(), self._own_random_numbers(), self.stash.collect():
            outputs = run_on_shards(forward_backward, inputs, stages.ranks.context_group)
        known = torch.empty(2, dtype=torch.float64, device=stages.ranks.device)
        if losses is not None:
            known = torch.stack([losses.mean(), losses.abs().mean()])
        stages.share((known,), stages.last)
        return outputs, known

    def _loss(self, outputs: Any, targets: Any) -> Tensor:
        """The task's loss of a micro-batch."""
        self.takes_loss = True
        try:
            with self.precision.forward_context():
                loss: Tensor = self.task.loss(outputs, targets)  # type: ignore[operator]
        except (TypeError, AttributeError, ValueError) as error:
            name = type(self.task).__name__
            raise UserError(
                f"strategy=pipeline: {name}.loss fails on outputs of the network and targets of a "
                f"micro-batch ({in_short(error, 80)}); let it be loss(outputs, targets), or use "
                "strategy.schedule=gpipe, which takes any loss"
            ) from error
        finally:
            self.takes_loss = False
        return loss


def _declares_loss(task: LightningModule) -> bool:
    """Whether a task has a method ``loss(outputs, targets)``; a module or a function is no promise.

    Many tasks keep their criterion as `self.loss`, and return more than its value.
    """
    if not callable(getattr(type(task), "loss", None)):
        return False
    try:
        signature(task.loss).bind(None, None)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _with_gradient(output: Tensor) -> Tensor:
    """The same tensor, but a loss that is computed of it requires a gradient, unless detached."""
    if not output.is_floating_point():
        return output

    def ran(_: Tensor) -> None:
        raise RuntimeError("the output of a schedule does not require grad")  # see `explained`

    # Cloned, because a step may change it in place.
    return with_hook(output.requires_grad_().clone(), ran)


@dataclass
class LossCheck:
    """Compares the loss that a step returns with the mean of micro-batches that was trained on.

    The numbers of a step are read in the next one, and before weights are saved, so that nobody
    waits for the device.
    """

    module: LightningModule
    mixed: bool
    """Whether autocast computes in 16 bits."""
    is_first: bool = True
    """Whether no step was compared yet. In the first one a loss without a gradient is rejected."""
    _latest: tuple[Tensor, torch.dtype, int] | None = None
    _arrived: Any = None
    """The event by which the numbers of the latest step are on the CPU, if they were on a GPU."""

    def compare(self, returned: Tensor, losses: Tensor) -> None:
        """Compare a step's loss with the mean of micro-batches, given it and that of their sizes.

        The difference is relative to the mean of absolute values: losses of both signs cancel out.
        """
        if self.is_first:
            reject_without_gradient(self.module, returned)
        elif returned.requires_grad:
            raise self._another("depends on parameters beside its network")
        self.read()
        self.is_first = False
        numbers = torch.stack([returned.detach().double().reshape(()), *losses])
        step = self.module.trainer.global_step
        self._latest = numbers.to("cpu", non_blocking=True), returned.dtype, step
        if numbers.is_cuda:
            self._arrived = torch.cuda.current_stream().record_event()

    def read(self) -> None:
        """Raise the error if the latest step returned another loss."""
        if self._latest is None:
            return
        if self._arrived is not None:
            self._arrived.synchronize()
        (numbers, dtype, step), self._latest = self._latest, None
        value, mean, size = numbers.tolist()
        relative = IN_16_BITS if self.mixed else TOLERANCE.get(dtype, IN_16_BITS)
        # What is below the smallest number of the type is lost on the way, and no mistake. The
        # loss itself shows what is not finite; see also callbacks=nan_guard.
        differs = abs(value - mean) > relative * size + torch.finfo(dtype).tiny
        if differs and math.isfinite(value) and math.isfinite(mean):
            raise self._another(
                f"returned {value:.10g} in step {step}, and {mean:.10g} was trained on"
            )

    def _another(self, what: str) -> UserError:
        return UserError(
            f"strategy=pipeline: {type(self.module).__name__}.training_step {what}, which is the "
            "mean of loss(outputs, targets) over micro-batches; put all of the loss into it, or "
            "use strategy.schedule=gpipe, which takes any"
        )
