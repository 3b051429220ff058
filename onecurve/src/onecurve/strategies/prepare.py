"""Calls a task's `prepare` once per step, with the random numbers of the full global batch.

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
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..batch.loader import RankLoader, kept_generators
from ..batch.random import are_equal, get_state, kept_state, set_state
from ..batch.share import Share
from ..batch.walk import Begun
from ..compat.of_lightning import (
    IndexBatchSamplerWrapper,
    batches_read_ahead,
    loaders_of,
    sampler_seen,
    set_loaders,
    transferred,
)
from ..compat.of_torch import TorchDispatchMode, argument_names, is_in_place, tree_map
from ..compat.patching import replaced
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
    if not prepares(module):
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        return Prepared(*batch) if pair else None
    draws: AbstractContextManager[Any] = nullcontext()
    if rows is not None and rows.size < rows.total:
        draws = GlobalBatchDraws(rows)
    with draws:
        made: Any = module.prepare(batch)  # type: ignore[operator]
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise UserError(
            f"{type(module).__name__}.prepare: must return inputs and targets, and it returned "
            f"{type(made).__name__}; such as: return batch['x'], batch['y']"
        )
    inputs = tuple(made[0]) if isinstance(made[0], list) else made[0]
    return Prepared(inputs, made[1])


def prepared_once(
    module: LightningModule, batch: Any, made: Prepared | None
) -> AbstractContextManager[None]:
    """Let the task's own call of `prepare` for the same batch return the result we already have."""
    if made is None or not prepares(module):
        return nullcontext()
    prepare: Any = module.prepare

    def cached(other: Any) -> Any:
        return tuple(made) if other is batch else prepare(other)

    return replaced(module, "prepare", cached)


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


def example_of(trainer: Trainer) -> tuple[Tensor, ...] | None:
    """The task's `example_input_array`, or the inputs of the first batch of an ordinary loader.

    Samples are read and moved to the device as in training, without consuming samples or random
    numbers. Streams and custom samplers are not read, because reading may change what they yield
    next; nor is a batch that is not ``(inputs, targets)`` where the task has no `prepare`: the
    result is None then. All ranks call this.
    """
    module = trainer.lightning_module
    example: Any = module.example_input_array
    if example is None:
        example = _of_loader(trainer)
    inputs = example if isinstance(example, tuple) else (example,)
    return inputs if all(isinstance(value, Tensor) for value in inputs) else None


def _of_loader(trainer: Trainer) -> Any:
    loop: Any = {
        TrainerFn.FITTING: trainer.fit_loop,
        TrainerFn.VALIDATING: trainer.validate_loop,
        TrainerFn.TESTING: trainer.test_loop,
        TrainerFn.PREDICTING: trainer.predict_loop,
    }[trainer.state.fn]  # type: ignore[index]
    combined = _loaders_early(loop)
    loader = combined.flattened[0] if combined is not None and combined.flattened else None
    loader = loader.loader if isinstance(loader, Begun) else loader
    if not isinstance(loader, RankLoader | DataLoader):
        return None
    written = loader.loader if isinstance(loader, RankLoader) else loader
    if isinstance(loader.dataset, IterableDataset) or not _is_pytorchs(written.batch_sampler):
        return None
    module = trainer.lightning_module
    with kept_state(), kept_generators(written):
        first = loader.first() if isinstance(loader, RankLoader) else next(iter(loader))
        batch = trainer.precision_plugin.convert_input(first)
        batch = transferred(module, batch)
        made = prepared(module, trainer.strategy.batch_to_device(batch, dataloader_idx=0))
    return None if made is None else made.inputs


class _SetsUp:
    """Replaces `setup_data` of a loop whose loaders are needed before Lightning sets them up.

    Until Lightning does, hooks find no loaders, and generators in the state of before.
    """

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.before = get_state()
        self.own = vars(loop).get("setup_data")
        loop.setup_data()
        self.after = get_state()
        set_state(self.before)
        self.combined = loaders_of(loop)
        set_loaders(loop, None)
        loop.setup_data = self

    def __call__(self) -> None:
        del self.loop.setup_data
        if self.own is not None:
            self.loop.setup_data = self.own
        set_loaders(self.loop, self.combined)
        if are_equal(get_state(), self.before):
            set_state(self.after)
        elif (fetcher := batches_read_ahead(self.loop)) is not None:
            iter(fetcher)  # draws the seeds of workers again


def _loaders_early(loop: Any) -> CombinedLoader | None:
    early = vars(loop).get("setup_data")
    early = early if isinstance(early, _SetsUp) else None
    if early is None and loaders_of(loop) is None:
        early = _SetsUp(loop)
    return loaders_of(loop) if early is None else early.combined


def _is_pytorchs(batches: Any) -> bool:
    """Whether a batch sampler is None or PyTorch's own, and so is its sampler."""
    if isinstance(batches, IndexBatchSamplerWrapper):
        batches = sampler_seen(batches)
    parts = (batches, batches.sampler) if type(batches) is BatchSampler else (batches,)
    known = ("torch.utils.data.", "torchdata.", "onecurve.")
    return batches is None or all(type(part).__module__.startswith(known) for part in parts)
