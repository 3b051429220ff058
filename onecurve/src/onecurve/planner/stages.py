"""The stages of a mesh's pipeline: which layers, of which rank, how many micro-batches."""

from functools import lru_cache
from typing import NamedTuple

from ..strategies.pipeline.limits import SCHEDULES
from ..strategies.pipeline.partition import Partition
from . import schedules


class Stages(NamedTuple):
    """A partition, and how a batch passes through it."""

    ranges: list[range]
    """Layers of each stage."""
    owner: list[int]
    """Rank of each stage."""
    num_layers: int
    schedule: str
    """Empty without a pipeline."""
    ranks: int
    microbatches: int
    samples: float
    """Of a micro-batch."""

    def of_rank(self, rank: int) -> list[int]:
        """The stages of a rank."""
        return [stage for stage, owner in enumerate(self.owner) if owner == rank]

    def moments(self, rank: int) -> list[dict[int, int]]:
        """How many micro-batches wait at each stage of a rank, when most do."""
        if self.ranks == 1:
            return [{0: 1}]
        return schedules.waiting(self.schedule, self.ranks, self.microbatches)[rank]


def stages_of(
    costs: tuple[float, ...], ranks: int, schedule: str, microbatches: int, samples: float
) -> Stages:
    """Cut layers as `strategy=pipeline` does.

    Args:
        costs: Of each layer, in any unit.
        ranks: Of the pipeline; 1 for none.
        schedule: A key of `SCHEDULES`; empty without a pipeline.
        microbatches: How many there are.
        samples: Of each.

    Raises:
        UserError: If there are fewer layers than stages.
    """
    per_rank = SCHEDULES[schedule].stages_per_rank if ranks > 1 else 1
    if len(costs) > MANY:
        # The search takes layers² × stages steps: shares whose costs hardly differ are cut alike.
        costs = tuple(float(f"{cost / max(costs):.2g}") for cost in costs)
    found = _partition(costs, ranks, per_rank, schedule == "zbv")
    return Stages(found.ranges, found.owner, len(costs), schedule, ranks, microbatches, samples)


MANY = 32
"""Layers from which costs are rounded."""


@lru_cache(maxsize=256)
def _partition(costs: tuple[float, ...], ranks: int, per_rank: int, v_shaped: bool) -> Partition:
    return Partition.of(
        costs, num_ranks=ranks, stages_per_rank=per_rank, v_shaped=v_shaped, balance="auto"
    )
