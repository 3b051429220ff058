"""`strategy=tensor`: every rank computes its part of each layer, for all samples.

A plan (`plan.py`) shards layers by column and by row, so that a pair of layers needs one sum over
the ranks. FSDP2 is applied on top with one shard, so that all parameters are of one kind.

Exact: the loss curve of `single`, to float tolerance, with accumulation, clipping, frozen layers
and an uneven last batch. Not exact: dropout between sharded layers (the ranks draw the same masks
for different features); a line says so.
Rejects: layers that the ranks cannot share evenly. `onecurve.parity` shows whether a network
computes the same with a plan.
Memory per rank: parameters, gradients, optimizer state and activations of sharded layers, divided
by the number of ranks; with ``sequence`` also the activations between them.
Source: M. Shoeybi et al., "Megatron-LM", 2019; V. Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022 (sequence).
"""

from collections.abc import Mapping, Sequence

from lightning.pytorch.strategies import DDPStrategy

from ..ac_compile import Recomputed
from ..fsdp.parallel import ShardedParameters
from ..fsdp.sharding import Sharding
from ..strategy import Backend, OneCurve
from .parallel import TensorParallel


class Tensor(OneCurve, DDPStrategy):
    """Tensor parallelism for an ordinary LightningModule.

    Args:
        plan: Styles by globs of module names; or "auto" for the `tensor_plan()` of the network or
            its modules, and an inferred plan for all others.
        sequence: Shard activations between sharded layers along the sequence, dimension 1.
        replicas: The number of groups of ranks that each hold all layers; they share the batch.
        activation_checkpointing: What the backward pass recomputes: see `ac_compile`.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        backend: The process group backend: see `OneCurve`.
        wrap: What is called as a whole, and gathered for it: see `FSDP`.
        forward_methods: Methods beside `forward` that the task calls by their names: see `FSDP`.
    """

    name = "tensor"

    def __init__(
        self,
        plan: Mapping[str, str] | str = "auto",
        sequence: bool = False,
        replicas: int = 1,
        activation_checkpointing: Recomputed = "none",
        timeout_seconds: float = 300,
        backend: Backend = "auto",
        wrap: str | Sequence[str] = "layer",
        forward_methods: Sequence[str] = (),
    ) -> None:
        # With a single shard there is nothing to free.
        sharding = Sharding(
            wrap, reshard_after_forward=False, forward_methods=tuple(forward_methods)
        )
        super().__init__(
            {"replicate": replicas, "tensor": "auto"},
            [
                TensorParallel(plan, sequence),
                ShardedParameters(sharding),
            ],
            activation_checkpointing,
            backend,
            timeout_seconds,
        )
