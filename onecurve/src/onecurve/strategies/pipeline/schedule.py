"""PyTorch's schedules, one for each shape of micro-batches.

Source: https://docs.pytorch.org/docs/stable/distributed.pipelining.html

A schedule allocates buffers for the shapes that it is given: a batch of another size would
be read into the wrong buffers. So each shape gets stages and a schedule of its own, over the same
layers; the shapes between stages come from `LayerShapes`, never from a trial run, which would
disturb BatchNorm's statistics.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from ...compat.of_torch import BatchNorm, tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from ...torch_versions import require
from ..prepare import no_loss
from .limits import SCHEDULES, split
from .partition import Stages
from .shapes import Tensors, as_tuple, call_layer

MOST_SHAPES = 8


class StageModule(nn.Module):
    """Consecutive layers as one module.

    The context, such as autocast, is entered around each forward pass: around the schedule it would
    also hold for the backward pass.
    """

    def __init__(
        self, layers: list[nn.Module], context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.context = context

    def forward(self, *inputs: Tensor) -> Any:
        """Pass tensors through the layers.

        Inputs from another stage are leaves of autograd, which a layer must not change in place, so
        they are cloned; outputs for another stage must be contiguous.
        """
        outputs: Any = tuple(value.clone() if value.requires_grad else value for value in inputs)
        with self.context():
            for layer in self.layers:
                outputs = call_layer(layer, as_tuple(outputs))
        return tree_map_only(Tensor, Tensor.contiguous, outputs)


class Stage(PipelineStage):
    """A stage whose gradients share no memory.

    Autograd hands one tensor to both terms of ``a + b``, or on to the stage before, and PyTorch
    then adds the next micro-batch's gradients to it in place: it would count twice. It also
    detaches in place what a stage returned, which layers may have kept for gradients of weights:
    a schedule without bubbles computes gradients of a stage's input first and those of its weights
    later, along the paths that it has found from one to the other.

    Attributes:
        splits_backward: Whether its schedule does so.
    """

    splits_backward: bool = False

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """Pass a micro-batch through the layers."""
        outputs = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        return tree_map_only(Tensor, torch.clone, outputs) if self.splits_backward else outputs

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """Compute gradients of one micro-batch: of the input, the weights, or, in full, of both."""
        if backward_type == "weight":
            saved = tree_leaves([group["grads"] for group in bwd_kwargs["param_groups"]])
            new = [parameter for parameter in self.submod.parameters() if parameter.grad is None]
        result = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        if backward_type == "weight":
            _keep_apart(new, [gradient for gradient in saved if gradient is not None])
        # What is sent must be contiguous.
        return tree_map_only(Tensor, Tensor.contiguous, result[0]), result[1]


def _keep_apart(parameters: Iterable[Tensor], others: Iterable[Tensor]) -> None:
    """Copy gradients that share memory with each other or with other tensors."""
    taken = {other.untyped_storage().data_ptr() for other in others}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        storage = gradient.untyped_storage().data_ptr()
        # One that was expanded lies in a single place.
        if storage in taken or 0 in gradient.stride():
            parameter.grad = gradient.clone()
        taken.add(storage)


@dataclass(eq=False)
class Schedules:
    """Runs batches of any size forward and backward through this rank's stages."""

    name: str
    """The name of the schedule."""
    microbatches: int
    """The wanted number."""
    stages: Stages
    loss: Callable[[Any, Any], Tensor]
    """The mean loss of outputs and targets; called on the rank with the last stage."""
    weigh: Callable[[Any], Tensor | None]
    """The task's weight of targets; None to count samples."""
    _schedules: dict[Any, Any] = field(default_factory=dict)
    _targets: Sequence[Any] = ()
    _weights: Sequence[float] = ()
    _scale: float = 1.0
    _losses: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = (part for layer in self.stages.network.layers.values() for part in layer.modules())
        # BatchNorm has no statistics of a single sample.
        self.least = 2 if any(isinstance(part, BatchNorm) for part in parts) else 1

    def forward_backward(
        self, inputs: Tensors, targets: Any, scale: float
    ) -> tuple[Tensors, Tensor | None]:
        """Run a batch; the gradients of its mean loss, times the scale, are left in ``.grad``.

        The first dimension of all tensors is the batch.

        Returns:
            On the rank with the last stage its outputs and the loss of each micro-batch, in
            float64, whose mean is that of the batch; elsewhere an empty tuple and None.
        """
        schedule, count = self.get(inputs)
        # Contiguous, as what is planned for: torch 2.11 and 2.12 compare strides.
        arguments = [v.contiguous() for v in inputs] if 0 in self.stages.modules else []
        if self.stages.last not in self.stages.modules:
            schedule.step(*arguments)
            return (), None
        self._targets = split_targets(targets, count, len(inputs[0]))
        self._weights = relative_weights(self._targets, self.weigh)
        self._scale = scale / count
        self._losses = []
        # Micro-batches are told apart by number: `target` may only be one tensor.
        outputs = schedule.step(*arguments, target=torch.arange(count), losses=[])
        return as_tuple(outputs), torch.stack([loss.double() for loss in self._losses])

    def split(self, size: int) -> tuple[str, int]:
        """The schedule and the number of micro-batches for so many samples."""
        ranks = self.stages.ranks.sizes.pipeline
        return split(self.name, self.microbatches, ranks, size, self.least)

    def get(self, inputs: Tensors) -> tuple[Any, int]:
        """PyTorch's schedule for a batch, and its number of micro-batches."""
        size = len(inputs[0])
        name, count = self.split(size)
        microbatch = tuple(value[: size // count] for value in inputs)
        # Stages send more or less where a callback has frozen layers, or thawed them.
        shapes = ((value.shape, value.dtype) for value in microbatch)
        key = (name, count, self.stages.trained(), *shapes)
        if key not in self._schedules:
            if len(self._schedules) == MOST_SHAPES:
                self._schedules.pop(next(iter(self._schedules)))
            self._schedules[key] = self._build(name, count, microbatch)
        return self._schedules[key], count

    def _build(self, name: str, count: int, microbatch: Tensors) -> Any:
        number = len(self.stages.owner)
        borders = [self.stages.boundary(microbatch, stage) for stage in range(number + 1)]
        mixed = any(len({value.requires_grad for value in border}) > 1 for border in borders[1:-1])
        if name != "gpipe" and mixed:
            require("strategy=pipeline whose stages pass on what has no gradient")
        splits_backward = SCHEDULES[name].splits_backward
        if splits_backward:
            # Without a gradient of its input, a stage that follows frozen layers would silently
            # miss weights: PyTorch finds them on the way from the output to the input.
            borders[1:-1] = [
                tuple(value.detach().requires_grad_(value.is_floating_point()) for value in border)
                for border in borders[1:-1]
            ]
        stages = [
            Stage(
                module,
                index,
                number,
                self.stages.ranks.device,
                input_args=borders[index],
                output_args=borders[index + 1],
                group=self.stages.ranks.pipeline_group,
            )
            for index, module in sorted(self.stages.modules.items())
        ]
        for stage in stages:
            stage.splits_backward = splits_backward
        build = getattr(schedules, SCHEDULES[name].torch_class)
        one_stage = issubclass(build, schedules.PipelineScheduleSingle)
        # The mean over micro-batches is taken in the loss: `scale_grads` would divide gradients
        # accumulated before once more.
        return build(
            stages[0] if one_stage else stages, count, loss_fn=self._weighted, scale_grads=False
        )

    def _weighted(self, outputs: Any, number: Tensor) -> Tensor:
        weight = self._weights[int(number)]
        loss = self.loss(outputs, self._targets[int(number)]) if weight else no_loss(outputs, None)
        self._losses.append(loss.detach() * weight)
        return loss * (self._scale * weight)


def relative_weights(parts: Sequence[Any], weigh: Callable[[Any], Tensor | None]) -> list[float]:
    """The weights of micro-batches, by their targets; 1 on average."""
    weights = [weigh(targets) for targets in parts]
    numbers = [1.0 if weight is None else float(weight) for weight in weights]
    total = sum(numbers)
    return [number * len(numbers) / total if total else 0.0 for number in numbers]


def split_targets(targets: Any, count: int, size: int) -> list[Any]:
    """Split the targets of `size` samples into equal parts.

    Targets are tensors whose first dimension is the batch, sequences with one entry per sample, and
    dictionaries, tuples and lists of these.
    """
    rows = size // count
    leaves, structure = tree_flatten(targets, is_leaf=partial(_is_of_samples, size=size))
    return [
        tree_unflatten([leaf[number * rows : (number + 1) * rows] for leaf in leaves], structure)
        for number in range(count)
    ]


def _is_of_samples(targets: Any, size: int) -> bool:
    """Whether targets are a list with an entry for each sample, and not one of full batches.

    PyTorch's collate function makes a list of full batches of what each sample has as a tuple.
    """
    if not isinstance(targets, list) or len(targets) != size:
        return False
    leaves = tree_leaves(targets)
    return not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (size,) for leaf in leaves)
