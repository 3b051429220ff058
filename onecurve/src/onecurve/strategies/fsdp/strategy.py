"""`strategy=fsdp`: every rank holds a shard of parameters, gradients and optimizer state.

It uses PyTorch's FSDP2. A unit (`sharding.py`) gathers its parameters for its forward pass and
again for its backward pass, and then averages gradients into shards.

Exact: the loss curve of `single`, to float tolerance, at every world size, with accumulation,
clipping, frozen layers, tied weights, replicas, an uneven last batch, and BatchNorm with
`trainer.sync_batchnorm=true` (else it has the statistics of each rank's share, and evaluation those
of rank 0). Not exact: dropout (each rank draws its own masks), bf16-mixed and 16-mixed (all
parameters but those of BatchNorm are rounded to 16 bits, also where autocast alone would compute in
32).
Memory per rank: parameters, gradients and optimizer state divided by the number of ranks that share
them, plus about two full units at a time. Gradients are averaged after each accumulated batch, too:
this sends more, but no rank ever holds a full gradient.
Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from lightning.pytorch.strategies import DDPStrategy

from ...arguments import configured_by
from ..options import FSDPOptions
from ..strategy import OneCurve
from .parallel import ShardedParameters


class FSDP(OneCurve, DDPStrategy):
    """Fully sharded data parallelism for an ordinary LightningModule.

    Lightning's own ModelParallelStrategy needs a module that shards itself in `configure_model`,
    and supports few precisions. The arguments are described in `FSDPOptions`.
    """

    name = "fsdp"

    @configured_by(FSDPOptions, "strategy")
    def __init__(self, options: FSDPOptions) -> None:
        super().__init__(
            options,
            {"replicate": options.replicas, "shard": "auto"},
            [ShardedParameters(options)],
        )
