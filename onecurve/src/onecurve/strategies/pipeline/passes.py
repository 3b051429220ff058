"""What stands for a call of the network: a batch passes through the stages of all ranks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor

from ...compat.of_torch import keeps_graph
from ...errors import UserError
from ..changed_buffers import changed
from ..weight import weight_of
from .fill_drain import FillDrain
from .gradients import Stash
from .placement import Stages
from .schedule import Schedules
from .stage import Tensors


class Passes:
    """Runs batches through the pipeline; every rank gets the last stage's outputs.

    Args:
        module: The task.
        network: The name of what is cut into stages.
        stages: This rank's.
        schedule: A key of `limits.SCHEDULES`.
        microbatches: The wanted number of micro-batches.
        context: Entered around forward passes and the loss, such as autocast.
        drawing_rank: Ranks with the same number draw the same.
        rows: This rank's samples of the batch under way; None where that is not known.
        is_sharded: Whether FSDP2 shards the stages.

    Attributes:
        calls: Of the network in the step under way.
        takes_loss: Whether the loss of a micro-batch is computed just now.
    """

    def __init__(
        self,
        module: LightningModule,
        network: str,
        stages: Stages,
        *,
        schedule: str,
        microbatches: int,
        context: Callable[[], AbstractContextManager[Any]],
        drawing_rank: int,
        rows: Callable[[], int | None],
        is_sharded: bool,
    ) -> None:
        self.module = module
        self.network = network
        self.stages = stages
        self.context = context
        self.sequences = stages.sequences
        self.drawing_rank = drawing_rank
        self.rows = rows
        self.parameters = stages.parameters()
        self.is_sharded = is_sharded
        self.calls = 0
        self.takes_loss = False
        self.stash = Stash(self.parameters)
        self.fill_drain = FillDrain(stages)
        weigh = partial(weight_of, module)
        self.schedules = Schedules(schedule, microbatches, stages, self._loss_of_pieces, weigh)
        self._inputs: Tensors = ()
        self._trained_before = stages.trained()
        self._at_first = {name: buffer.clone() for name, buffer in stages.buffers().items()}

    # Around the task's own loss

    def forward(self, inputs: Tensors, chunks: int | None = None) -> Tensors:
        """The network's outputs on every rank, which gradients pass back through."""
        chunks = chunks or self.chunks(inputs)
        with self._own_random_numbers(), self.sequences.working(inputs):
            given = self.sequences.cut(inputs)
            if torch.is_grad_enabled() and self._needs_gradient(given):
                weights = () if self.is_sharded else self.parameters
                # Ranks whose own part is frozen take part in the backward pass all the same.
                leaf = torch.ones((), device=self.stages.device, requires_grad=True)
                outputs = _Through.apply(self, chunks, len(given), leaf, *given, *weights)
            else:
                with torch.no_grad():
                    outputs = self.share(self.fill_drain.forward(given, chunks)[0], given)
                if self.is_sharded:
                    self._reshard()
            return tuple(self.sequences.whole(output, inputs) for output in outputs)

    def _reshard(self) -> None:
        from ..fsdp.sharding import reshard

        for stage in self.stages.modules.values():
            reshard(stage)

    def chunks(self, inputs: Tensors) -> int:
        """How many micro-batches inputs make: one, if their first dimension is not the batch."""
        if not self.is_batch(inputs):
            return 1
        size = len(inputs[0])
        if torch.is_grad_enabled():
            return self.schedules.split(size)[1] if size else 1
        return max(1, min(self.schedules.microbatches, size))

    def is_batch(self, inputs: Tensors) -> bool:
        """Whether the first dimension of all is that of the samples, beyond doubt.

        Of as many positions as samples, nobody could tell which of the two comes first.
        """
        rows = self.rows()
        return rows is not None and all(
            value.shape[:1] == (rows,)
            and not (
                value.shape[1:2] == (rows,) and (value.ndim > 2 or not value.is_floating_point())
            )
            for value in inputs
        )

    def _needs_gradient(self, inputs: Tensors) -> bool:
        return any(self.stages.trained()) or any(value.requires_grad for value in inputs)

    def share(self, outputs: Tensors, inputs: Tensors) -> Tensors:
        """Give the last stage's outputs for a batch to every rank."""
        if not outputs:
            shapes = self.stages.boundary(inputs, len(self.stages.owner))
            outputs = tuple(torch.empty_like(shape, device=self.stages.device) for shape in shapes)
        for output in outputs:
            dist.broadcast(output, group=self.stages.group, group_src=self.stages.owner[-1])
        return outputs

    def share_back(self, gradients: Tensors, inputs: Tensors) -> Tensors:
        """Give the gradients of what enters the first stage to every rank."""
        wanted = [value for value in inputs if value.requires_grad]
        gradients = gradients or tuple(torch.empty_like(value) for value in wanted)
        for gradient in gradients:
            dist.broadcast(gradient, group=self.stages.group, group_src=self.stages.owner[0])
        return gradients

    # By a schedule that takes the loss

    def train(self, inputs: Tensors, targets: Any, scale: float) -> tuple[Tensors, Tensor]:
        """Forward and backward of a batch; the gradients are in ``stash``.

        Args:
            inputs: What enters the network: tensors whose first dimension is the batch.
            targets: The batch's targets.
            scale: Multiplies the gradients, against underflow in 16 bits.

        Returns:
            On every rank the outputs, detached; and of the micro-batches' losses, in float64, the
            mean and the mean of their sizes.
        """
        if (trained := self.stages.trained()) != self._trained_before:
            self._trained_before = trained
            self.schedules.forget()  # less or more is sent
        # The schedule enters autocast itself, around forward passes alone.
        no_autocast = torch.autocast(self.stages.device.type, enabled=False)
        with (
            no_autocast,
            torch.enable_grad(),
            self._own_random_numbers(),
            self.stash.collect(),
            self.sequences.working(inputs),
        ):
            self._inputs = inputs
            given = self.sequences.cut(inputs)
            results, losses = self.schedules.forward_backward(given, targets, scale)
            outputs = self.share(tuple(result.detach() for result in results), given)
        if losses is None:
            known = torch.empty(2, dtype=torch.float64, device=self.stages.device)
        else:
            known = torch.stack([losses.mean(), losses.abs().mean()])
        dist.broadcast(known, group=self.stages.group, group_src=self.stages.owner[-1])
        return tuple(self.sequences.whole(output, inputs) for output in outputs), known

    def _loss_of_pieces(self, outputs: Any, targets: Any) -> Tensor:
        return self.loss(self.sequences.whole(outputs, self._inputs), targets)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The task's loss of the outputs for a micro-batch."""
        self.takes_loss = True
        try:
            with self.context(), self.sequences.outside():
                loss: Tensor = self.module.loss(outputs, targets)  # type: ignore[operator]
        finally:
            self.takes_loss = False
        return loss

    # For both

    def changed_buffers(self) -> list[str]:
        """Names of this rank's buffers that steps have changed, as BatchNorm's statistics."""
        before, self._at_first = self._at_first, {}
        return changed(before, self.stages.buffers())

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let layers draw from (seed, batch, rank, call), and leave the common generator untouched.

        The task's steps run on every rank and must draw the same there, whatever the layers draw.
        """
        batches = self.module.trainer.fit_loop.epoch_loop.total_batch_idx
        seed = (torch.initial_seed(), max(batches, 0), self.drawing_rank, self.calls)
        self.calls += 1
        devices = [self.stages.device] if self.stages.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
            torch.manual_seed(int(state[0]) % 2**63)
            yield


class _Through(torch.autograd.Function):
    """The whole pipeline as one operation of autograd, the same on every rank."""

    @staticmethod
    def forward(
        ctx: Any, passes: Passes, chunks: int, count: int, leaf: Tensor, *tensors: Tensor
    ) -> Tensors:
        inputs = tensors[:count]
        with torch.enable_grad():
            results, ctx.kept = passes.fill_drain.forward(inputs, chunks)
        outputs = passes.share(results, inputs)
        ctx.passes, ctx.inputs, ctx.weights = passes, inputs, tensors[count:]
        ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UserError(
                "strategy=pipeline: a gradient that is to be differentiated once more "
                "(create_graph=True) does not pass through stages; use strategy=ddp"
            )
        if ctx.kept is None:
            raise RuntimeError("a second backward pass needs retain_graph=True in the first")
        retain_graph, passes = keeps_graph(), ctx.passes
        found, total = passes.fill_drain.backward(ctx.kept, gradients, retain_graph)
        if not retain_graph:
            ctx.kept = None
        back = iter(passes.share_back(found, ctx.inputs))
        of_inputs = [next(back) if value.requires_grad else None for value in ctx.inputs]
        return None, None, None, None, *of_inputs, *(total.get(each) for each in ctx.weights)
