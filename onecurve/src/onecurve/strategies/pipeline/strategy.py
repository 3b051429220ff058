"""`strategy=pipeline`: consecutive layers on each rank; micro-batches pass through them.

See `parallel.py` for how, and for what is exact.
Memory per rank: its own layers' parameters, gradients and optimizer state, and the activations of
the micro-batches under way.
"""

from collections.abc import Sequence
from typing import Literal

from lightning.pytorch.strategies import DDPStrategy

from ..ac_compile import Recomputed
from ..strategy import Backend, OneCurve
from .limits import Schedule
from .parallel import PipelineParallel


class Pipeline(OneCurve, DDPStrategy):
    """Pipeline parallelism for an ordinary LightningModule.

    Args:
        schedule: A key of `limits.SCHEDULES`.
        microbatches: Micro-batches per batch. If they do not divide a batch, the nearest number
            that does is used for it.
        stages_per_rank: Stages that a rank holds; "auto" for what the schedule is made for.
        balance: "auto" for the partition whose most expensive stage is cheapest, or the number of
            layers of each stage.
        replicas: Pipelines side by side, which share the batch. Neighbouring ranks form a pipeline.
        activation_checkpointing: What the backward pass recomputes: see `ac_compile`.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        backend: The process group backend: see `OneCurve`.

    Raises:
        UserError: If there is no such schedule.
    """

    name = "pipeline"

    def __init__(
        self,
        schedule: Schedule = "1f1b",
        microbatches: int = 4,
        stages_per_rank: int | Literal["auto"] = "auto",
        balance: Sequence[int] | str = "auto",
        replicas: int = 1,
        activation_checkpointing: Recomputed = "none",
        timeout_seconds: float = 300,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            {"replicate": replicas, "pipeline": "auto"},
            [PipelineParallel(schedule, microbatches, stages_per_rank, balance)],
            activation_checkpointing,
            backend,
            timeout_seconds,
        )
