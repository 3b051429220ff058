"""`strategy=fsdp`: every rank holds a shard of parameters, gradients and optimizer state.

PyTorch's FSDP2 does the work. A unit (`sharding.py`) gathers its parameters for its forward pass
and again for its backward pass, and then averages gradients into shards.

Exact: the loss curve of `single`, to float tolerance, at every world size, with accumulation,
clipping, frozen layers, tied weights, replicas and an uneven last batch. Not exact: BatchNorm
(statistics of each rank's share; evaluation uses those of rank 0), dropout (each rank draws its own
masks), bf16-mixed and 16-mixed (all parameters but those of BatchNorm are rounded to 16 bits, also
where autocast alone would compute in 32).
Memory per rank: parameters, gradients and optimizer state divided by the ranks that share them, and
two or so whole units at a time. Gradients are averaged after each accumulated batch too: it sends
more, but no rank ever holds a whole gradient.
Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from collections.abc import Sequence
from typing import Literal

from lightning.pytorch.strategies import DDPStrategy

from ..layers_made import Recomputed
from ..strategy import Backend, OneCurve
from .parallel import ShardedParameters
from .sharding import Sharding


class FSDP(OneCurve, DDPStrategy):
    """Fully sharded data parallelism for an ordinary LightningModule.

    Lightning's own ModelParallelStrategy wants a module that shards itself in `configure_model`,
    and takes few precisions.

    Args:
        wrap: What becomes a unit: "layer", "min_params" or a list of class names (`find_units`).
        min_params: Parameters of a unit at least, for ``wrap="min_params"``.
        reshard_after_forward: Free a unit's gathered parameters between forward and backward pass.
            "auto" frees all but the last ones, whose backward pass follows at once.
        cpu_offload: Keep shards, gradients and optimizer state in the CPU's memory, and update them
            there. On a CPU this changes nothing.
        activation_checkpointing: What a backward pass computes again: see `layers_made`.
        replicas: Groups of ranks that hold all shards each; the batch is shared by all ranks.
            Neighbouring ranks form a group.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        backend: What carries what they send: see `OneCurve`.
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
    ) -> None:
        sharding = Sharding(wrap, min_params, reshard_after_forward, cpu_offload)
        super().__init__(
            {"replicate": replicas, "shard": "auto"},
            [ShardedParameters(sharding)],
            activation_checkpointing,
            backend,
            timeout_seconds,
        )
