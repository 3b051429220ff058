"""What the strategies of one process a device share: Lightning's process group.

Lightning's DDPStrategy makes the group, knows ranks and world size, and broadcasts.
"""

from datetime import timedelta
from typing import Annotated, Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import Tensor
from torch.optim import Optimizer

from ..limits import Number
from .all_samples import all_rows
from .global_batch import GlobalBatch

Seconds = Annotated[float, Number(above=0)]


class RankPerDevice(GlobalBatch, DDPStrategy):
    """One rank a device, every rank with samples of its own.

    Args:
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        kwargs: What `lightning.pytorch.strategies.DDPStrategy` takes.
    """

    def __init__(self, timeout_seconds: Seconds = 1800, **kwargs: Any) -> None:
        super().__init__(timeout=timedelta(seconds=timeout_seconds), **kwargs)

    @property
    def data_parallel_rank(self) -> int:  # type: ignore[override]
        """This rank's coordinate among the ranks that see different samples."""
        return self.global_rank

    @property
    def data_parallel_size(self) -> int:  # type: ignore[override]
        """How many ranks see different samples."""
        return self.world_size

    def all_samples(self, tensor: Tensor) -> Tensor:
        """See `ForCallbacks`."""
        self._has_taken_all = True
        if self.data_parallel_size == 1:
            return tensor
        if self._share is not None and not self._share.size:
            tensor = tensor[:0]  # what a rank without samples has is another's
        return all_rows(tensor, self.samples_group)


class PartPerRank(RankPerDevice):
    """One rank a device, every rank with a part of the network; nothing wraps the LightningModule.

    A subclass takes its rank's part of ``self.lightning_module`` in `model_to_device`, which
    Lightning calls before it builds the optimizers.
    """

    def setup(self, trainer: Trainer) -> None:
        """Set up as Lightning's Strategy does: DDPStrategy would wrap the module or copy it."""
        Strategy.setup(self, trainer)
        self.prepare()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """What a checkpoint holds of an optimizer; parameters have their usual ids."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        return self.collect_optimizer_state(optimizer)

    def collect_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """On rank 0 the state of whole parameters, elsewhere nothing; or this rank's part."""
        raise NotImplementedError

    def _setup_model(self, model: LightningModule) -> LightningModule:  # type: ignore[override]
        return model
