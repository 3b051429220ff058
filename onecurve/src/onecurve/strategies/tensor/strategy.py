"""`strategy=tensor`: every rank computes its part of each layer, for all samples.

A plan (`plan.py`) shards layers by column and by row, so that a pair of layers needs one sum over
the ranks. FSDP2 is applied on top with one shard, so that all parameters are of one kind.

Exact: the loss curve of `single`, to float tolerance, with accumulation, clipping, frozen layers
and an uneven last batch. Not exact: dropout between sharded layers (the ranks draw the same masks
for different features); a line says so.
Rejects: layers that the ranks cannot share evenly. `onecurve.parity` shows whether a network
computes the same with a plan.
Memory per rank: parameters, gradients, optimizer state and activations of sharded layers, divided
by the number of ranks.
Source: M. Shoeybi et al., "Megatron-LM", 2019.
"""

from lightning.pytorch.strategies import DDPStrategy

from ...arguments import configured_by
from ..fsdp.parallel import ShardedParameters
from ..options import ShardOptions, TensorOptions
from ..strategy import OneCurve
from .parallel import TensorParallel


class Tensor(OneCurve, DDPStrategy):
    """Tensor parallelism for an ordinary LightningModule.

    The arguments are described in `TensorOptions`. A plan that is "auto" is the `tensor_plan()` of
    the network or its modules, and inferred for all others.
    """

    name = "tensor"

    @configured_by(TensorOptions, "strategy")
    def __init__(self, options: TensorOptions) -> None:
        # With a single shard there is nothing to free.
        shards = ShardOptions(
            wrap=options.wrap, forward_methods=options.forward_methods, reshard_after_forward=False
        )
        super().__init__(
            options,
            {"replicate": options.replicas, "tensor": "auto"},
            [TensorParallel(options.plan), ShardedParameters(shards)],
        )
