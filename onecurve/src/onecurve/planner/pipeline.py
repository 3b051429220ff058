"""The pipeline of a mesh: its stages, and PyTorch's schedules of them.

How long a schedule takes, and what waits for its backward pass, follows from its order, which
PyTorch's own schedule tells.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch.distributed.pipelining import schedules

from ..strategies.pipeline.limits import SCHEDULES, idle_share
from ..strategies.pipeline.partition import Partition, stages_of_rank
from .timeline import bubble, simulate

Order = dict[int, Sequence[Any]]

MANY_LAYERS = 32  # more layers than these are partitioned by rounded costs


@lru_cache(maxsize=512)
def order_of(schedule: str, ranks: int, microbatches: int) -> Order:
    """What each rank of a pipeline computes, in order."""
    per_rank = SCHEDULES[schedule].stages_per_rank
    count = ranks * per_rank
    # All that a schedule asks its stages for.
    stages: list[Any] = [
        SimpleNamespace(
            stage_index=index,
            num_stages=count,
            group_size=ranks,
            group_rank=0,
            submod=None,
            has_backward=True,
            is_first=index == 0,
            is_last=index == count - 1,
        )
        for index in stages_of_rank(0, ranks, per_rank, schedule == "zbv")
    ]
    build: Any = getattr(schedules, SCHEDULES[schedule].torch_class)
    one_stage = issubclass(build, schedules.PipelineScheduleSingle)
    built = build(stages[0] if one_stage else stages, microbatches, loss_fn=lambda *_: None)
    order: Order = built.pipeline_order
    return order


@lru_cache(maxsize=512)
def waiting(schedule: str, ranks: int, microbatches: int) -> list[list[dict[int, int]]]:
    """For each rank, how many micro-batches wait for their backward pass, by stage, at its fullest.

    Several moments, where none of them has as many or more at every stage.
    """
    by_rank = []
    for _, actions in sorted(order_of(schedule, ranks, microbatches).items()):
        now: Counter[int] = Counter()
        moments: list[dict[int, int]] = []
        for action in filter(None, actions):
            kind = action.computation_type.value
            # A split backward pass frees the activations with its second half.
            if kind in ("F", "B", "W"):
                now[action.stage_index] += 1 if kind == "F" else -1
            if kind == "F" and now not in moments:
                moments.append(dict(now))
        by_rank.append([m for m in moments if not any(_is_fuller(other, m) for other in moments)])
    return by_rank


def _is_fuller(other: dict[int, int], one: dict[int, int]) -> bool:
    return other != one and all(other.get(stage, 0) >= count for stage, count in one.items())


def approximate_duration(
    schedule: str, ranks: int, microbatches: int, costs: tuple[float, ...]
) -> tuple[float, float]:
    """As `duration`, in closed form, as if every rank were as slow as the slowest."""
    per_rank = SCHEDULES[schedule].stages_per_rank
    idle = idle_share(schedule, ranks, microbatches, ranks * per_rank)
    busy = [
        sum(costs[stage] for stage in stages_of_rank(rank, ranks, per_rank, schedule == "zbv"))
        for rank in range(ranks)
    ]
    length = 3 * microbatches * max(busy) / (1 - idle)
    return length, 1 - 3 * microbatches * sum(busy) / (ranks * length)


@lru_cache(maxsize=4096)
def duration(
    schedule: str, ranks: int, microbatches: int, costs: tuple[float, ...]
) -> tuple[float, float]:
    """How long a schedule takes, and its bubble: the share of the time in which ranks wait.

    `costs` are the times of the forward pass of each stage for one micro-batch.
    """
    spans = simulate(order_of(schedule, ranks, microbatches), costs)
    return max(span.stop for span in spans), bubble(spans)


class Stages(NamedTuple):
    """The stages of a pipeline, and the micro-batches that pass through them.

    `ranges` are the layers and `owner` the rank of each stage; `samples` those of a micro-batch.
    Without a pipeline the schedule is empty.
    """

    ranges: list[range]
    owner: list[int]
    num_layers: int
    schedule: str
    ranks: int
    microbatches: int
    samples: float

    def of_rank(self, rank: int) -> list[int]:
        return [stage for stage, owner in enumerate(self.owner) if owner == rank]

    def moments(self, rank: int) -> list[dict[int, int]]:
        """How many micro-batches wait at each stage of a rank when it is fullest: see `waiting`."""
        if self.ranks == 1:
            return [{0: 1}]
        return waiting(self.schedule, self.ranks, self.microbatches)[rank]


def stages_of(
    costs: tuple[float, ...], ranks: int, schedule: str, microbatches: int, samples: float
) -> Stages:
    """Partition layers of some costs, in any unit, as `strategy=pipeline` does.

    Fewer layers than stages are a UserError.
    """
    per_rank = SCHEDULES[schedule].stages_per_rank if ranks > 1 else 1
    if len(costs) > MANY_LAYERS:
        # The search takes layers² × stages steps. Rounding lets batches of similar costs share one.
        costs = tuple(float(f"{cost / max(costs):.2g}") for cost in costs)
    split = _partition(costs, ranks, per_rank, schedule == "zbv")
    return Stages(split.ranges, split.owner, len(costs), schedule, ranks, microbatches, samples)


@lru_cache(maxsize=256)
def _partition(costs: tuple[float, ...], ranks: int, per_rank: int, v_shaped: bool) -> Partition:
    return Partition.of(
        costs, num_ranks=ranks, stages_per_rank=per_rank, v_shaped=v_shaped, balance="auto"
    )
