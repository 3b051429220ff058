"""`strategy=pipeline`: consecutive layers on each rank; micro-batches pass through them.

See `parallel.py` for how, and for what is exact.
Memory per rank: its own layers' parameters, gradients and optimizer state, and the activations of
the micro-batches under way.
"""

from lightning.pytorch.strategies import DDPStrategy

from ...arguments import configured_by
from ..options import PipelineOptions
from ..strategy import OneCurve
from .parallel import PipelineParallel


class Pipeline(OneCurve, DDPStrategy):
    """Pipeline parallelism for an ordinary LightningModule.

    Neighbouring ranks form a pipeline. If the micro-batches do not divide a batch, the nearest
    number that does is used for it. The arguments are described in `PipelineOptions`.
    """

    name = "pipeline"

    @configured_by(PipelineOptions, "strategy")
    def __init__(self, options: PipelineOptions) -> None:
        super().__init__(
            options,
            {"replicate": options.replicas, "pipeline": "auto"},
            [PipelineParallel(options)],
        )
