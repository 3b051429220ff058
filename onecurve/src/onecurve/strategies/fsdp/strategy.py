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

from collections.abc import Sequence
from typing import Literal

from lightning.pytorch.strategies import DDPStrategy

from ..ac_compile import Recomputed
from ..strategy import Backend, OneCurve
from .parallel import ShardedParameters
from .sharding import Sharding


class FSDP(OneCurve, DDPStrategy):
    """Fully sharded data parallelism for an ordinary LightningModule.

    Lightning's own ModelParallelStrategy needs a module that shards itself in `configure_model`,
    and supports few precisions.

    Args:
        wrap: What becomes a unit: "layer", "min_params" or a list of class names (`find_units`).
        min_params: The minimal number of parameters of a unit, for ``wrap="min_params"``.
        reshard_after_forward: Free a unit's gathered parameters between forward and backward pass.
            "auto" keeps those of the last units, whose backward pass follows at once.
        cpu_offload: Keep and update shards, gradients and optimizer state in the CPU's memory. This
            changes nothing on a CPU.
        activation_checkpointing: What the backward pass recomputes: see `ac_compile`.
        replicas: The number of groups of neighbouring ranks that each hold all shards; all ranks
            share the batch.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        backend: The process group backend: see `OneCurve`.
        forward_methods: Methods beside `forward` for which a unit gathers its parameters, such as
            ["encode", "decode"], if the task calls them by their names.
    """

    name = "fsdp"

    def __init__(
        self,
        wrap: str | Sequence[str] = "layer",
        min_params: int = 1_000_000,
        reshard_after_forward: Literal["auto"] | bool = "auto",
        cpu_offload: bool = False,
        activation_checkpointing: Recomputed = "none",
        replicas: int = 1,
        timeout_seconds: float = 300,
        backend: Backend = "auto",
        forward_methods: Sequence[str] = (),
    ) -> None:
        sharding = Sharding(
            wrap, min_params, reshard_after_forward, cpu_offload, tuple(forward_methods)
        )
        super().__init__(
            {"replicate": replicas, "shard": "auto"},
            [ShardedParameters(sharding)],
            activation_checkpointing,
            backend,
            timeout_seconds,
        )
