"""`strategy=mesh`: any combination of data, pipeline, sharded, context and tensor parallelism.

The other strategies are special cases: `fsdp` has the axes replicate and shard, `pipeline` the axes
replicate and pipeline. The mesh uses the same code: first ranks share the layers (pipeline), then
the matrices of each layer (tensor), then FSDP2 shards the parameters (shard).

Exact: the loss curve of `single`, to float tolerance, on every mesh, like each strategy alone.
Memory per rank: parameters, gradients and optimizer state divided by pipeline x shard x context x
tensor, except layers without a tensor style; activations divided by pipeline, context and tensor.
"""

from lightning.pytorch.strategies import DDPStrategy

from ...arguments import configured_by
from ..fsdp.parallel import ShardedParameters
from ..options import MeshOptions
from ..parallelism import Parallelism
from ..strategy import OneCurve
from .sizes import Sizes


class Mesh(OneCurve, DDPStrategy):
    """A strategy for ranks on a mesh; the product of the axes must be the number of ranks.

    The axes are those of `Sizes`; `shard` may be "auto" for the ranks that the others leave. The
    other arguments are those of `FSDP`, of `Tensor` and of `Pipeline`, and count where there are
    several ranks along that axis. In a pipeline ``reshard_after_forward="auto"`` frees nothing,
    because every micro-batch would have to gather the parameters again.
    """

    name = "mesh"

    @configured_by(MeshOptions, "strategy")
    def __init__(self, options: MeshOptions) -> None:
        parallelisms: list[Parallelism] = []
        shards = options
        if options.pipeline > 1:
            from ..pipeline.parallel import PipelineParallel

            parallelisms.append(PipelineParallel(options))
            if options.reshard_after_forward == "auto":
                shards = options.model_copy(update={"reshard_after_forward": False})
        if options.tensor > 1:
            from ..tensor.parallel import TensorParallel

            parallelisms.append(TensorParallel(options.plan))
        if options.context > 1:
            from ..context_parallel import ContextParallel

            parallelisms.append(ContextParallel())
        parallelisms.append(ShardedParameters(shards))
        super().__init__(
            options, {axis: getattr(options, axis) for axis in Sizes._fields}, parallelisms
        )


mesh = Mesh
"""`Mesh` by the name of its strategy: ``mesh(pipeline=2)``."""
