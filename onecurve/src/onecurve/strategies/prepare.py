"""What a task says of its batches: `prepare`, called before a step, and `weight`.

A task whose batches are not ``(inputs, targets)`` may define:

    def prepare(self, batch): return inputs, targets
    def weight(self, targets): return number

`prepare` may draw random numbers. A rank has only its share of the global batch, so random tensors
with one row per sample are drawn for the full batch, and the rank keeps its rows: every strategy
draws the same numbers. This works for PyTorch's functions whose result has one row per sample; not
for `torch.randperm`, nor where the number of draws depends on values, as in `torch.poisson`.

`weight` returns what the loss is a mean over: the number of tokens that are not padding, or the sum
of class weights. If the batch is not a pair and the task has no `prepare`, the call is
``weight(batch)``. The weights of the parts of a batch must add up to that of the batch. A batch
whose labels are ignored in part (-100, as in transformers) has a loss that is probably a mean over
the others: without `weight`, a line says so.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor

from ..batch.random import RankStream, State, are_equal, get_state, set_state
from ..batch.share import Share
from ..compat.of_lightning import accumulates
from ..compat.of_torch import (
    TorchDispatchMode,
    argument_names,
    is_in_place,
    tensor_leaves,
    tree_map,
)
from ..compat.patches import replaced
from ..errors import UserError

IGNORED = -100
"""The label that cross_entropy ignores."""


class Prepared(NamedTuple):
    """The inputs of the network, and the targets of the loss."""

    inputs: Any
    """A tensor, or a tuple of tensors."""
    targets: Any
    """Any tree of tensors, each with one row per sample."""


def prepares(module: LightningModule) -> bool:
    """Whether a task has a method `prepare`."""
    return callable(getattr(module, "prepare", None))


def prepared(module: LightningModule, batch: Any, rows: Share | None = None) -> Prepared | None:
    """Inputs and targets of a batch, or of these rows of the global batch.

    None if the task has no `prepare` and the batch is not a pair.
    """
    if prepares(module):
        return _call(module.prepare, module, batch, rows)
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    return Prepared(*batch) if pair else None


def _call(prepare: Any, module: LightningModule, batch: Any, rows: Share | None) -> Prepared:
    draws: AbstractContextManager[Any] = nullcontext()
    if rows is not None and rows.size < rows.total:
        draws = GlobalBatchDraws(rows)
    with draws:
        prepared: Any = prepare(batch)
    if not isinstance(prepared, tuple | list) or len(prepared) != 2:
        raise UserError(
            f"{type(module).__name__}.prepare: must return inputs and targets, and it returned "
            f"{type(prepared).__name__}; such as: return batch['x'], batch['y']"
        )
    inputs = tuple(prepared[0]) if isinstance(prepared[0], list) else prepared[0]
    return Prepared(inputs, prepared[1])


class PreparedEarly:
    """What `prepare` returns for a batch, known before the step that may ask for it.

    A plain Trainer draws where the step calls `prepare`, and not at all if it does not, as a
    validation step may not. So the generators are set back until then.

    Attributes:
        result: None if the task has no `prepare` and the batch is not a pair.
    """

    def __init__(self, module: LightningModule, batch: Any, rows: Share | None) -> None:
        self._module, self._batch, self._rows = module, batch, rows
        self._drawn: tuple[State, State] | None = None
        before = get_state() if prepares(module) else None
        self.result = prepared(module, batch, rows)
        if before is not None and not are_equal(before, after := get_state()):
            self._drawn = before, after
            set_state(before)

    def returned_once(self, stream: RankStream) -> AbstractContextManager[None]:
        """Let the task's own call of `prepare` for this batch return the result, and draw for it.

        Where the step has drawn from the common stream before, as a first call does for a second
        one, `prepare` is called again.
        """
        result, module = self.result, self._module
        if result is None or not prepares(module):
            return nullcontext()
        prepare: Any = module.prepare

        def own_call(other: Any) -> Any:
            if other is not self._batch:
                return prepare(other)
            if self._drawn is None:
                return tuple(result)
            before, after = self._drawn
            with stream.common():
                if are_equal(get_state(), before):
                    set_state(after)
                    return tuple(result)
                return tuple(_call(prepare, module, other, self._rows))

        return replaced(module, "prepare", own_call)


class GlobalBatchDraws(TorchDispatchMode):
    """Draws random rows for the full global batch, and keeps the rows of this rank."""

    def __init__(self, rows: Share) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        names = argument_names(func)
        arguments = dict(zip(names, args, strict=False)) | kwargs
        if not any(self._has_rows(name, value) for name, value in arguments.items()):
            return func(*args, **kwargs)
        full = {name: self._for_all_rows(name, value) for name, value in arguments.items()}
        rows = slice(self.rows.start, self.rows.stop)
        result = tree_map(lambda drawn: drawn[rows], func(**full))
        return arguments["self"].copy_(result) if is_in_place(func) else result

    def _has_rows(self, name: str, value: Any) -> bool:
        if isinstance(value, Tensor):
            return value.shape[:1] == (self.rows.size,)
        return name == "size" and len(value) > 0 and value[0] == self.rows.size

    def _for_all_rows(self, name: str, value: Any) -> Any:
        """Extend an argument to one row for each sample of the global batch."""
        if not self._has_rows(name, value):
            return value
        start, stop, total, _ = self.rows
        if not isinstance(value, Tensor):
            return [total, *value[1:]]
        # The values in the other rows do not matter: the number of draws does not depend on them.
        before = value[:1].expand(start, *value.shape[1:])
        after = value[:1].expand(total - stop, *value.shape[1:])
        return torch.cat([before, value, after])


def example_of(task: LightningModule, precision: Precision) -> tuple[Tensor, ...] | None:
    """The task's `example_input_array` in a run's precision; None if it is no tensors."""
    example: Any = precision.convert_input(task.example_input_array)
    inputs = example if isinstance(example, tuple) else (example,)
    return inputs if all(isinstance(value, Tensor) for value in inputs) else None


def weighs(module: LightningModule) -> bool:
    """Whether a task has a method `weight`."""
    return callable(getattr(module, "weight", None))


def weight_of(module: LightningModule, targets: Any) -> Tensor | None:
    """The task's `weight` of targets or of a batch, in float64; None without such a method."""
    if not weighs(module):
        return None
    return torch.as_tensor(module.weight(targets)).detach().double()  # type: ignore[operator]


def ignores_labels(batch: Any) -> bool:
    """Whether labels of sequences in a batch are ignored."""
    return any(
        bool((tensor == IGNORED).any())
        for tensor in tensor_leaves(batch)
        if tensor.ndim > 1 and tensor.dtype == torch.int64
    )


def no_loss(outputs: Any, targets: Any) -> Tensor:
    """Zero, whose backward pass gives every parameter a gradient of zero."""
    return torch.stack([leaf.sum() * 0.0 for leaf in tensor_leaves(outputs)]).sum()


def rows(batch: Any) -> int:
    """Samples of a batch that no loader of ours made; 1 if its tensors disagree."""
    sizes = {len(tensor) for tensor in tensor_leaves(batch) if tensor.ndim}
    return sizes.pop() if len(sizes) == 1 else 1


class Window:
    """The batches that one optimizer step accumulates.

    Lightning divides each batch's loss by `accumulate_grad_batches`. That equals the mean over
    samples only if the window has that many batches, all of the same size. But the last window of
    an epoch may have fewer, its last batch may be smaller, and with a task's `weight` any two
    batches may differ.

    So each loss is multiplied by its batch's count relative to the first batch of the window.
    Before the backward pass of the last batch, the accumulated gradients are rescaled to the mean.
    Nothing is read ahead, so a stream may end anywhere. In a full window of equal batches every
    factor is 1.
    """

    def __init__(self, module: LightningModule) -> None:
        self.module = module
        # The count of the first batch with a nonzero count, and the sum of all relative to it.
        self._first = 0.0
        self._relative = 0.0

    @torch.no_grad()
    def factor(self, count: float) -> float:
        """The factor for the loss of the current batch; call it right before the backward pass.

        Args:
            count: Samples of the batch over all ranks, or their weight according to the task's
                `weight`; 0 if the step was skipped.
        """
        self._first = self._first or count
        relative = count / self._first if self._first else 0.0
        self._relative += relative
        if accumulates(self.module.trainer):
            return relative
        trainer = self.module.trainer
        to_mean = trainer.accumulate_grad_batches / self._relative if self._relative else 1.0
        if to_mean != 1.0:
            # Not module.parameters(): FSDP2 may have gathered those, and they have no gradients.
            groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
            for parameter in (each for group in groups for each in group["params"]):
                if parameter.grad is not None:
                    parameter.grad.mul_(to_mean)
        return relative * to_mean
