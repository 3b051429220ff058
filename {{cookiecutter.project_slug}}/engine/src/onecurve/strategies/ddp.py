"""`strategy=ddp`: a copy of the network a rank; gradients are averaged after each backward pass.

Exact: the loss curve of `single`, to float tolerance, at every world size, with accumulation,
clipping and an uneven last batch. Not exact: BatchNorm (statistics of each rank's share unless
`trainer.sync_batchnorm=true`), dropout (each rank draws its own masks), gradients sent in 16 bits.
Memory per rank: that of `single` plus gradient buckets. Source:
https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from typing import Any, Literal

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from .process_group import RankPerDevice

COMPRESSION = {
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}


class DDP(RankPerDevice):
    """Lightning's DDPStrategy with the global-batch sampler.

    Args:
        communication_dtype: Send gradients as "bf16" or "fp16"; None sends them as they are.
        kwargs: What `lightning.pytorch.strategies.DDPStrategy` takes.
    """

    def __init__(
        self, communication_dtype: Literal["bf16", "fp16"] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.communication_dtype = communication_dtype

    def _register_ddp_hooks(self) -> None:
        """Lightning calls this once the module is wrapped; its own registers hooks on GPUs only."""
        assert isinstance(self.model, DistributedDataParallel)
        if self.communication_dtype is not None:
            self.model.register_comm_hook(None, COMPRESSION[self.communication_dtype])
