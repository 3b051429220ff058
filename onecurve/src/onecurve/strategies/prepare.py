"""Calls a task's `prepare` before a step, with the random numbers of the full global batch.

A task whose batches are not ``(inputs, targets)`` may define:

    def prepare(self, batch): return inputs, targets
    def weight(self, targets): return number

`prepare` may draw random numbers. A rank has only its share of the global batch, so random tensors
with one row per sample are drawn for the full batch, and the rank keeps its rows: every strategy
draws the same numbers. This works for PyTorch's functions whose result has one row per sample; not
for `torch.randperm`, nor where the number of draws depends on values, as in `torch.poisson`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor

from ..batch.random import RankStream, State, are_equal, get_state, set_state
from ..batch.share import Share
from ..compat.of_torch import TorchDispatchMode, argument_names, is_in_place, tree_map
from ..compat.patches import replaced
from ..errors import UserError


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
        made: Any = prepare(batch)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise UserError(
            f"{type(module).__name__}.prepare: must return inputs and targets, and it returned "
            f"{type(made).__name__}; such as: return batch['x'], batch['y']"
        )
    inputs = tuple(made[0]) if isinstance(made[0], list) else made[0]
    return Prepared(inputs, made[1])


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
        made, module = self.result, self._module
        if made is None or not prepares(module):
            return nullcontext()
        prepare: Any = module.prepare

        def own_call(other: Any) -> Any:
            if other is not self._batch:
                return prepare(other)
            if self._drawn is None:
                return tuple(made)
            before, after = self._drawn
            with stream.common():
                if are_equal(get_state(), before):
                    set_state(after)
                    return tuple(made)
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
        given = dict(zip(names, args, strict=False)) | kwargs
        if not any(self._has_rows(name, value) for name, value in given.items()):
            return func(*args, **kwargs)
        full = {name: self._for_all_rows(name, value) for name, value in given.items()}
        own = slice(self.rows.start, self.rows.stop)
        result = tree_map(lambda drawn: drawn[own], func(**full))
        return given["self"].copy_(result) if is_in_place(func) else result

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
