"""What a task makes of a batch: once a step, and drawn as for the whole global batch.

A task may say more than that a batch is ``(inputs, targets)``:

    def prepare(self, batch): return inputs, targets
    def weight(self, targets): return number

`prepare` may draw random numbers. A rank has only its share of the global batch, so what it draws
for samples is drawn for all of them, and cut: every strategy draws alike. That holds for PyTorch's
functions whose result has a row a sample. Not for `torch.randperm`, and not for a draw whose number
of random numbers depends on values, as `torch.poisson`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..batch.loader import RankLoader, kept_generators
from ..batch.random import kept_state
from ..batch.resume import Waiting
from ..batch.share import Share
from ..compat.of_lightning import IndexBatchSamplerWrapper, loaders_of, sampler_seen, transferred
from ..compat.of_torch import TorchDispatchMode, argument_names, is_in_place, tree_map
from ..errors import UserError
from .redirect import replaced


class Prepared(NamedTuple):
    """What enters the network, and what its outputs are compared with."""

    inputs: Any
    """A tensor, or a tuple of tensors."""
    targets: Any
    """Any tree of tensors, each with a row a sample."""


def prepares(module: LightningModule) -> bool:
    """Whether a task says how inputs and targets are made of a batch."""
    return callable(getattr(module, "prepare", None))


def prepared(module: LightningModule, batch: Any, rows: Share | None = None) -> Prepared | None:
    """Inputs and targets of a batch.

    Args:
        module: The task.
        batch: What its step gets.
        rows: Which rows of the global batch these are; None for all of them.

    Returns:
        None for a batch that is no pair, of a task without `prepare`.
    """
    if not prepares(module):
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        return Prepared(*batch) if pair else None
    cut: AbstractContextManager[Any] = nullcontext()
    if rows is not None and rows.size < rows.total:
        cut = DrawnForAll(rows)
    with cut:
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
    """Let the task's own call of `prepare`, for the same batch, return what is made already."""
    if made is None or not prepares(module):
        return nullcontext()
    prepare: Any = module.prepare

    def again(other: Any) -> Any:
        return tuple(made) if other is batch else prepare(other)

    return replaced(module, "prepare", again)


class DrawnForAll(TorchDispatchMode):
    """Draws what has a row a sample for the whole batch, and keeps the rows of this rank.

    Args:
        rows: Which those are.
    """

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
        whole = {name: self._of_others(name, value) for name, value in given.items()}
        own = slice(self.rows.start, self.rows.stop)
        result = tree_map(lambda drawn: drawn[own], func(**whole))
        return given["self"].copy_(result) if is_in_place(func) else result

    def _has_rows(self, name: str, value: Any) -> bool:
        if isinstance(value, Tensor):
            return value.shape[:1] == (self.rows.size,)
        return name == "size" and len(value) > 0 and value[0] == self.rows.size

    def _of_others(self, name: str, value: Any) -> Any:
        """An argument with a row for each sample of the global batch."""
        if not self._has_rows(name, value):
            return value
        start, stop, total, _ = self.rows
        if not isinstance(value, Tensor):
            return [total, *value[1:]]
        # How much is drawn does not depend on what stands in the rows of others.
        before = value[:1].expand(start, *value.shape[1:])
        after = value[:1].expand(total - stop, *value.shape[1:])
        return torch.cat([before, value, after])


def example_of(trainer: Trainer) -> tuple[Tensor, ...] | None:
    """The task's `example_input_array`, or the inputs of the first batch of an ordinary loader.

    Samples are read and moved to the device as in training, and none is consumed, nor a random
    number; a stream is left alone, and so is a sampler of the user's own, which may yield other
    samples once it was asked. All ranks call this.

    Returns:
        None if a batch is not ``(inputs, targets)``, and the task has no `prepare`.
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
    # As it would be asked for later.
    loop.setup_data()
    combined = loaders_of(loop)
    loader = combined.flattened[0] if combined is not None and combined.flattened else None
    loader = loader.loader if isinstance(loader, Waiting) else loader
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


def _is_pytorchs(batches: Any) -> bool:
    """Whether what says the samples of a batch is PyTorch's, or there is nothing."""
    if isinstance(batches, IndexBatchSamplerWrapper):
        batches = sampler_seen(batches)
    parts = (batches, batches.sampler) if type(batches) is BatchSampler else (batches,)
    known = ("torch.utils.data.", "torchdata.", "onecurve.")
    return batches is None or all(type(part).__module__.startswith(known) for part in parts)
