"""`strategy=mesh`: up to four axes of parallelism at once, and samples shared out on top.

The other strategies whose ranks hold parts are points of it: `fsdp` has the axes replicate and
shard, `pipeline` replicate and pipeline. It trains with their code: layers are shared out first
(pipeline), then cut within (tensor), then their parameters are sharded by FSDP2 (shard).

Exact: the loss curve of `single`, to float tolerance, on every mesh, as the strategies alone.
Memory per rank: parameters, gradients and optimizer state divided by pipeline x shard x context x
tensor, but for what no style cuts; activations by pipeline, context and tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from lightning.pytorch.strategies import DDPStrategy

from ..fsdp.parallel import ShardedParameters
from ..fsdp.sharding import Sharding
from ..layers_made import Recomputed
from ..parallelism import Parallelism
from ..pipeline.limits import Schedule
from ..strategy import Backend, OneCurve


class Mesh(OneCurve, DDPStrategy):
    """What `mesh` returns."""

    name = "mesh"


def mesh(
    replicate: int = 1,
    pipeline: int = 1,
    shard: int | Literal["auto"] = "auto",
    context: int = 1,
    tensor: int = 1,
    plan: Mapping[str, str] | str = "auto",
    sequence: bool = False,
    wrap: str | Sequence[str] = "layer",
    min_params: int = 1_000_000,
    reshard_after_forward: Literal["auto"] | bool = "auto",
    cpu_offload: bool = False,
    activation_checkpointing: Recomputed = "none",
    schedule: Schedule = "1f1b",
    microbatches: int = 4,
    stages_per_rank: int | Literal["auto"] = "auto",
    balance: Sequence[int] | str = "auto",
    split: Sequence[str] | None = None,
    timeout_seconds: float = 300,
    backend: Backend = "auto",
) -> Mesh:
    """A strategy for ranks on a mesh; the product of the axes is the number of ranks.

    Args:
        replicate: Copies of the network, with samples of their own.
        pipeline: Parts of the sequence of layers.
        shard: Parts of every parameter, with samples of their own; "auto" for the ranks that the
            other axes leave.
        context: Parts of every sequence of positions.
        tensor: Parts of each layer.
        plan: See `Tensor`, as for the next one. Used where tensor is more than 1.
        sequence: See there.
        wrap: See `FSDP`, as for the next three.
        min_params: See there.
        reshard_after_forward: See there; "auto" frees nothing between the micro-batches of a
            pipeline, for each of which it would have to be gathered again.
        cpu_offload: See there.
        activation_checkpointing: What a backward pass computes again: see `layers_made`.
        schedule: See `Pipeline`, as for the next four. Used where pipeline is more than 1.
        microbatches: See there.
        stages_per_rank: See there.
        balance: See there.
        split: See there.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        backend: What carries what they send: see `OneCurve`.
    """
    parallelisms: list[Parallelism] = []
    if pipeline > 1:
        from ..pipeline.parallel import PipelineParallel

        parallelisms.append(
            PipelineParallel(schedule, microbatches, stages_per_rank, balance, split)
        )
        if reshard_after_forward == "auto":
            reshard_after_forward = False
    if tensor > 1:
        from ..tensor.parallel import TensorParallel

        parallelisms.append(TensorParallel(plan, sequence))
    if context > 1:
        from ..context.parallel import ContextParallel

        parallelisms.append(ContextParallel())
    sharding = Sharding(wrap, min_params, reshard_after_forward, cpu_offload)
    axes: dict[str, int | Literal["auto"]] = {
        "replicate": replicate,
        "pipeline": pipeline,
        "shard": shard,
        "context": context,
        "tensor": tensor,
    }
    return Mesh(
        axes,
        [*parallelisms, ShardedParameters(sharding)],
        activation_checkpointing,
        backend,
        timeout_seconds,
    )
