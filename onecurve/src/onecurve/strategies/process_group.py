"""What the strategies of one process a device share: Lightning's process group.

Lightning's DDPStrategy makes the group, knows ranks and world size, and broadcasts.
"""

from datetime import timedelta
from typing import Annotated, Any, Literal

from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.optim import Optimizer

from ..limits import Number
from .all_samples import all_rows
from .global_batch import GlobalBatch

Seconds = Annotated[float, Number(above=0)]
Backend = Literal["auto", "gloo", "nccl"]


class RankPerDevice(GlobalBatch, DDPStrategy):
    """One rank a device, every rank with samples of its own.

    Args:
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        kwargs: What `lightning.pytorch.strategies.DDPStrategy` takes.

    Attributes:
        backend: What carries the collectives: "gloo", "nccl", or "auto" for what PyTorch takes for
            the device: nccl for GPUs, gloo for CPUs.
            https://docs.pytorch.org/docs/stable/distributed.html#backends
    """

    backend: Backend = "auto"

    def __init__(self, timeout_seconds: Seconds = 1800, **kwargs: Any) -> None:
        super().__init__(timeout=timedelta(seconds=timeout_seconds), **kwargs)

    def _get_process_group_backend(self) -> str:
        return super()._get_process_group_backend() if self.backend == "auto" else self.backend

    @property
    def data_parallel_rank(self) -> int:  # type: ignore[override]
        """This rank's coordinate among the ranks that see different samples."""
        return self.global_rank

    @property
    def data_parallel_size(self) -> int:  # type: ignore[override]
        """How many ranks see different samples."""
        return self.world_size

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Weigh a loss whose backward pass a task starts by itself, in its step."""
        if self._weight != 1.0:
            closure_loss = closure_loss * self._weight
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    def all_samples(self, tensor: Tensor) -> Tensor:
        """See `ForCallbacks`."""
        if self.data_parallel_size == 1:
            return tensor
        if self._share is not None and not self._share.size:
            tensor = tensor[:0]  # what a rank without samples has is another's
        return all_rows(tensor, self.samples_group)
