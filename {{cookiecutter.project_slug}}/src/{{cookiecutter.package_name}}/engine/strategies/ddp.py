"""`strategy=ddp`: a copy of the network a rank; gradients are averaged after each backward pass.

Exact: the loss curve of `single`, to float tolerance, at every world size, with accumulation,
clipping and an uneven last batch. Not exact: BatchNorm (statistics of each rank's share unless
`trainer.sync_batchnorm=true`), dropout (each rank draws its own masks).
Memory per rank: that of `single` plus gradient buckets. Source:
https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from datetime import timedelta
from typing import Any

from lightning.pytorch.strategies import DDPStrategy

from .global_batch import GlobalBatch


class DDP(GlobalBatch, DDPStrategy):
    """Lightning's DDPStrategy with the global-batch sampler.

    Args:
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        kwargs: What `lightning.pytorch.strategies.DDPStrategy` takes.
    """

    def __init__(self, timeout_seconds: float = 1800, **kwargs: Any) -> None:
        super().__init__(timeout=timedelta(seconds=timeout_seconds), **kwargs)

    @property
    def data_parallel_rank(self) -> int:  # type: ignore[override]
        """Every rank sees different samples."""
        return self.global_rank

    @property
    def data_parallel_size(self) -> int:  # type: ignore[override]
        """Ranks on all nodes."""
        return self.world_size
