"""`strategy=pipeline`: consecutive layers on each rank; micro-batches pass through them.

See `pipelined.py` for how, and for what is exact.
Memory per rank: its own layers' parameters, gradients and optimizer state, and the activations of
the micro-batches under way.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from ...limits import Number
from ..fsdp.sharding import Sharding
from ..layers_made import Recomputed
from ..process_group import Backend, Seconds
from .limits import Schedule
from .pipelined import Pipelined


class Pipeline(Pipelined):
    """Pipeline parallelism for an ordinary LightningModule.

    Args:
        schedule: A key of `limits.SCHEDULES`.
        microbatches: Micro-batches a batch. Where they do not divide a batch, the nearest number
            that does is taken for that batch.
        stages_per_rank: Stages a rank holds; "auto" takes what the schedule is made for.
        balance: "auto" for the partition with the smallest largest cost, or the number of layers of
            each stage.
        replicas: Pipelines side by side, which share the batch. Neighbouring ranks form a pipeline.
        activation_checkpointing: What a backward pass computes again: see `layers_made`.
        timeout_seconds: How long a rank waits for another before it fails.
        backend: What carries what they send: see `RankPerDevice`.

    Raises:
        UserError: If there is no such schedule.
    """

    def __init__(
        self,
        schedule: Schedule = "1f1b",
        microbatches: Annotated[int, Number(least=1)] = 4,
        stages_per_rank: Annotated[int, Number(least=1)] | Literal["auto"] = "auto",
        balance: Sequence[int] | str = "auto",
        replicas: Annotated[int, Number(least=1)] = 1,
        activation_checkpointing: Recomputed = "none",
        timeout_seconds: Seconds = 300,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            "pipeline",
            {"replicate": replicas, "pipeline": "auto"},
            Sharding(),
            timeout_seconds,
            schedule=schedule,
            microbatches=microbatches,
            stages_per_rank=stages_per_rank,
            balance=balance,
        )
        self.backend = backend
        self.activation_checkpointing = activation_checkpointing
