"""`strategy=single`: one process, one device. The reference that all others are compared with.

Exact: everything: it is a plain Trainer, with the same loaders, samples, random numbers and hooks.
What it adds: a checkpoint of any step resumes exactly, and batches that are accumulated count by
their samples. Refuses: more than one device or process.
"""

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch.utils.data import DataLoader

from .. import machine
from ..batch.loader import is_stream, size_of_batch
from ..batch.share import SharedLoader
from ..batch.stream import is_stateful
from ..errors import UserError
from .accumulation import rows
from .global_batch import GlobalBatch
from .layers_made import Recomputed
from .weight import weighs


class Single(GlobalBatch, SingleDeviceStrategy):
    """Lightning's SingleDeviceStrategy with the global-batch sampler.

    Args:
        activation_checkpointing: What a backward pass computes again: see `layers_made`.
        kwargs: What `lightning.pytorch.strategies.SingleDeviceStrategy` takes.
    """

    name = "single"
    # The Trainer fills this in from `trainer.accelerator` and `trainer.devices`.
    parallel_devices: list[torch.device] | None = None
    # Samples of the training batch under way, where its loader says so.
    _known: int | None = None

    def __init__(self, activation_checkpointing: Recomputed = "none", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation_checkpointing = activation_checkpointing

    def setup_environment(self) -> None:
        """Refuse ranks, each of which would train all of the network on all samples.

        Raises:
            UserError: If this process is one of several.
        """
        ranks = machine.ranks_around()
        if ranks is not None and ranks.world_size > 1:
            raise UserError(
                f"strategy: {type(self).__name__} is one process, and {ranks.starter} started "
                f"{ranks.world_size}; start one, or use a strategy of several, such as ddp"
            )
        super().setup_environment()

    def shared(self, loader: Any) -> Any:
        """The loader itself, unless it is a stream that can tell where it stands."""
        if not isinstance(loader, DataLoader) or not is_stream(loader):
            return loader
        is_here = loader.num_workers == 0 and is_stateful(loader.dataset)
        return super().shared(loader) if is_here or is_stateful(loader) else loader

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        return SingleDeviceStrategy.batch_to_device(self, batch, device, dataloader_idx)

    def count_together(self) -> None:
        """There is nobody to count with."""

    def _weighed_step(self, *args: Any) -> STEP_OUTPUT:
        samples, is_exact = self._samples(args[0])
        self._count = samples
        self._known = samples if is_exact else None
        output: STEP_OUTPUT = self._run_step("training_step", *args)
        loop = self._connected_module.trainer.fit_loop
        for loader in loop._combined_loader.flattened if loop._combined_loader is not None else []:
            if isinstance(loader, SharedLoader):
                loader.trained(loop.batch_idx)
        self._count_samples(samples, is_exact)
        return output

    def _samples(self, batch: Any) -> tuple[int, bool]:
        """How many samples a training batch has, and whether its loaders' samplers say so."""
        loop = self._connected_module.trainer.fit_loop
        loaders = loop._combined_loader.flattened if loop._combined_loader is not None else []
        sizes = [size_of_batch(loader, loop.batch_idx) for loader in loaders]
        if None in sizes or not sizes:
            return rows(batch), False
        return sum(size for size in sizes if size is not None), True

    def _run_step(self, name: str, *args: Any) -> Any:
        # Only a task that says what counts is asked.
        weighs_loss = weighs(self._connected_module)
        return super()._run_step(name, *args) if weighs_loss else self.task_step(name, *args)

    def _evaluation_step(self, name: str, *args: Any) -> STEP_OUTPUT:
        output: STEP_OUTPUT = self._run_step(name, *args)
        return output

    def predict_step(self, *args: Any) -> Any:
        return self.task_step("predict_step", *args)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0] if self.parallel_devices else torch.device("cpu")
