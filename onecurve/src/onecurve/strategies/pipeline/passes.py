"""What stands for `forward`: passes of a batch through all stages, with or without a backward."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ...errors import UserError
from ..fsdp.sharding import reshard
from ..sequences import WholeSequences
from .forward_only import forward_only
from .gradients import Stash
from .limits import SCHEDULES
from .placement import Placement
from .schedule import Schedules, Tensors
from .shapes import LayerShapes


class Passes:
    """Runs batches through the pipeline; every rank gets the last stage's outputs.

    Args:
        module: The task.
        placement: Which rank holds what.
        stages: This rank's stages by index.
        shapes: Shapes between the layers.
        schedule: A key of `limits.SCHEDULES`.
        microbatches: The wanted number of micro-batches.
        context: Entered around forward passes and the loss, such as autocast.
        group: The ranks of this pipeline.
        device: Where this rank computes.
        sequences: What is given of each sequence.
        drawing_rank: Ranks with the same number draw the same.
        weigh: How much counts in targets; None where that is their number.
        deposited: See `Stash`.
    """

    def __init__(
        self,
        module: LightningModule,
        placement: Placement,
        stages: dict[int, nn.Module],
        shapes: LayerShapes,
        *,
        schedule: str,
        microbatches: int,
        context: Callable[[], AbstractContextManager[Any]],
        group: dist.ProcessGroup,
        device: torch.device,
        sequences: WholeSequences,
        drawing_rank: int,
        weigh: Callable[[Any], Tensor | None],
        deposited: Callable[[], None],
    ) -> None:
        self.module = module
        self.placement = placement
        self.shapes = shapes
        self.microbatches = microbatches
        self.context = context
        self.group = group
        self.device = device
        self.sequences = sequences
        self._inputs: Tensors = ()
        self.drawing_rank = drawing_rank
        self.stages = stages
        own = [p for stage in self.stages.values() for p in stage.parameters()]
        self.stash = Stash(own, deposited)
        self.schedules = Schedules(
            schedule,
            microbatches,
            stages=self.stages,
            num_stages=placement.num_stages,
            boundary=self.boundary,
            loss=self._loss,
            weigh=weigh,
            group=group,
            device=device,
        )
        self._trained = [parameter.requires_grad for parameter in module.parameters()]

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
        self._follow_freezing()
        # The schedule enters autocast itself, around forward passes alone.
        no_autocast = torch.autocast(self.device.type, enabled=False)
        with (
            no_autocast,
            torch.enable_grad(),
            self._own_random_numbers(),
            self.stash.collect(),
            self.sequences.working(inputs),
        ):
            self._inputs = inputs
            results, losses = self.schedules.forward_backward(
                self.sequences.cut(inputs), targets, scale
            )
        if self.schedules.unchecked:
            self._check_gradients()
            self.schedules.unchecked.clear()
        outputs = self._share(tuple(result.detach() for result in results), inputs)
        if losses is None:
            known = torch.empty(2, dtype=torch.float64, device=self.device)
        else:
            known = torch.stack([losses.mean(), losses.abs().mean()])
        dist.broadcast(known, group=self.group, group_src=self.placement.last_rank)
        return outputs, known

    def schedule_of(self, inputs: Tensors) -> tuple[Any, int]:
        """PyTorch's schedule for a batch, and its number of micro-batches."""
        return self.schedules.get(self.sequences.cut(inputs))

    def _follow_freezing(self) -> None:
        """Build schedules anew where a callback froze or thawed layers: less or more is sent."""
        trained = [parameter.requires_grad for parameter in self.module.parameters()]
        if trained != self._trained:
            self.shapes = LayerShapes(self.placement.layers, self.context)
            self.schedules.forget()
            self._trained = trained

    def _check_gradients(self) -> None:
        """Refuse a schedule that does not find all weights, which would be silently wrong."""
        name = self.schedules.name
        if not SCHEDULES[name].splits_backward:
            return
        missing = {
            parameter
            for parameter, gradient in zip(self.stash.parameters, self.stash.gradients, strict=True)
            if gradient is None and parameter.requires_grad
        }
        wrong = {parameter for stage in self.schedules.unchecked for parameter in stage.wrong()}
        for path, parameter in self.module.named_parameters():
            if parameter in missing | wrong:
                what = "no" if parameter in missing else "a wrong"
                raise UserError(
                    f"strategy.schedule={name}: {path} gets {what} gradient where forward and "
                    "backward are split like this; use strategy.schedule=1f1b, or freeze it"
                )

    def run(self, inputs: Tensors, chunks: int | None = None) -> Tensors:
        """Forward only: the outputs for a batch, on every rank.

        Args:
            inputs: What enters the network: tensors whose first dimension is the batch.
            chunks: Number of micro-batches; None takes that of training.
        """
        with self._own_random_numbers(), self.sequences.working(inputs):
            outputs = forward_only(
                self.sequences.cut(inputs),
                chunks=min(chunks or self.microbatches, len(inputs[0])),
                stages=self.stages,
                owner=self.placement.partition.owner,
                boundary=self.boundary,
                group=self.group,
            )
        for stage in self.stages.values():
            reshard(stage)
        return self._share(outputs, inputs)

    def boundary(self, microbatch: Tensors, stage: int) -> Tensors:
        """What enters a stage, on the meta device; for the number of stages, what leaves."""
        with self.sequences.outside():
            boundaries = self.shapes.boundaries(microbatch, self.module.training)
        return boundaries[self.placement.first_layer(stage)]

    def _share(self, outputs: Tensors, inputs: Tensors) -> Tensors:
        """Give the last stage's outputs for a batch to every rank."""
        if not outputs:
            shapes = self.boundary(self.sequences.cut(inputs), self.placement.num_stages)
            outputs = tuple(torch.empty_like(shape, device=self.device) for shape in shapes)
        for output in outputs:
            dist.broadcast(output, group=self.group, group_src=self.placement.last_rank)
        return tuple(self.sequences.whole(output, inputs) for output in outputs)

    def _loss(self, outputs: Any, targets: Any) -> Tensor:
        whole = self.sequences.whole(outputs, self._inputs)
        with self.context(), self.sequences.outside():
            loss: Tensor = self.module.loss(whole, targets)  # type: ignore[operator]
        return loss

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let layers draw from (seed, batch, rank), and leave the common generator untouched.

        The task's steps run on every rank and must draw the same there, whatever the layers draw.
        """
        batches = self.module.trainer.fit_loop.epoch_loop.total_batch_idx
        seed = (torch.initial_seed(), max(batches, 0), self.drawing_rank)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
            torch.manual_seed(int(state[0]) % 2**63)
            yield
