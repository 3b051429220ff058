"""An example of what enters a task, to weigh layers and to draw a graph; no step is run for it."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..batch.loader import kept_generators
from ..batch.random import kept_state
from ..batch.resume import Waiting
from ..batch.share import SharedLoader
from ..compat import IndexBatchSamplerWrapper
from .prepared import prepared


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
    combined: Any = loop._combined_loader
    loader = combined.flattened[0] if combined is not None and combined.flattened else None
    loader = loader.loader if isinstance(loader, Waiting) else loader
    if not isinstance(loader, SharedLoader | DataLoader):
        return None
    written = loader.loader if isinstance(loader, SharedLoader) else loader
    if isinstance(loader.dataset, IterableDataset) or not _is_pytorchs(written.batch_sampler):
        return None
    module = trainer.lightning_module
    with kept_state():
        if isinstance(loader, SharedLoader):
            first = loader.first()
        else:
            with kept_generators(loader):
                first = next(iter(loader))
        batch = trainer.precision_plugin.convert_input(first)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        made = prepared(module, trainer.strategy.batch_to_device(batch, dataloader_idx=0))
    return None if made is None else made.inputs


def _is_pytorchs(batches: Any) -> bool:
    """Whether what says the samples of a batch is PyTorch's, or there is nothing."""
    if isinstance(batches, IndexBatchSamplerWrapper):
        batches = batches._batch_sampler
    parts = (batches, batches.sampler) if type(batches) is BatchSampler else (batches,)
    known = ("torch.utils.data.", "torchdata.", "onecurve.")
    return batches is None or all(type(part).__module__.startswith(known) for part in parts)
