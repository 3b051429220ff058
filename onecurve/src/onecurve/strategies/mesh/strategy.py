"""`strategy=mesh`: any combination of data, pipeline, sharded, context and tensor parallelism.

The other strategies are special cases: `fsdp` has the axes replicate and shard, `pipeline` the axes
replicate and pipeline. The mesh uses the same code: first ranks share the layers (pipeline), then
the matrices of each layer (tensor), then FSDP2 shards the parameters (shard).

Exact: the loss curve of `single`, to float tolerance, on every mesh, like each strategy alone.
Memory per rank: parameters, gradients and optimizer state divided by pipeline x shard x context x
tensor, except layers without a tensor style; activations divided by pipeline, context and tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from lightning.pytorch.strategies import DDPStrategy

from ..ac_compile import Recomputed
from ..fsdp.parallel import ShardedParameters
from ..fsdp.sharding import Sharding
from ..parallelism import Parallelism
from ..pipeline.limits import Schedule
from ..strategy import Backend, OneCurve


class Mesh(OneCurve, DDPStrategy):
    """The strategy that `mesh` returns."""

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
    timeout_seconds: float = 300,
    backend: Backend = "auto",
    forward_methods: Sequence[str] = (),
) -> Mesh:
    """A strategy for ranks on a mesh; the product of the axes must be the number of ranks.

    The axes are those of `Sizes`; `shard` may be "auto" for the ranks that the others leave. The
    other arguments are those of `FSDP`, of `Tensor` (`plan`, `sequence`: used with several ranks
    along that axis) and of `Pipeline` (`schedule` to `balance`, likewise). In a pipeline
    ``reshard_after_forward="auto"`` frees nothing, because every micro-batch would have to gather
    the parameters again.
    """
    parallelisms: list[Parallelism] = []
    if pipeline > 1:
        from ..pipeline.parallel import PipelineParallel

        parallelisms.append(PipelineParallel(schedule, microbatches, stages_per_rank, balance))
        if reshard_after_forward == "auto":
            reshard_after_forward = False
    if tensor > 1:
        from ..tensor.parallel import TensorParallel

        parallelisms.append(TensorParallel(plan, sequence))
    if context > 1:
        from ..context_parallel import ContextParallel

        parallelisms.append(ContextParallel())
    sharding = Sharding(
        wrap, min_params, reshard_after_forward, cpu_offload, tuple(forward_methods)
    )
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
