"""PyTorch's own schedules, asked for their order: how long they take, and what waits meanwhile."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules

from ..strategies.pipeline.limits import SCHEDULES
from ..strategies.pipeline.partition import stages_of_rank
from ..strategies.pipeline.report import bubble, simulate

Order = dict[int, Sequence[Any]]


@lru_cache(maxsize=512)
def order_of(schedule: str, ranks: int, microbatches: int) -> Order:
    """What each rank of a pipeline computes, in order.

    Args:
        schedule: A key of `SCHEDULES`.
        ranks: Of the pipeline.
        microbatches: How many there are.
    """
    per_rank = SCHEDULES[schedule].stages_per_rank
    count = ranks * per_rank
    # A schedule asks its stages for no more than these numbers.
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
    """For each rank, how many micro-batches wait for their backward pass at each of its stages.

    Returns:
        For each rank those moments at which no other has as many at every stage.
    """
    return [
        _moments(actions) for _, actions in sorted(order_of(schedule, ranks, microbatches).items())
    ]


def _moments(actions: Sequence[Any]) -> list[dict[int, int]]:
    now: Counter[int] = Counter()
    seen: set[tuple[tuple[int, int], ...]] = set()
    for action in actions:
        kind = action.computation_type.value if action is not None else ""
        if kind == "F":
            now[action.stage_index] += 1
            seen.add(tuple(sorted(now.items())))
        # Where the backward pass is split, what was kept goes with its second half.
        elif kind in ("B", "W"):
            now[action.stage_index] -= 1
    moments = [dict(each) for each in seen]
    return [
        one
        for one in moments
        if not any(
            other is not one and all(other.get(stage, 0) >= count for stage, count in one.items())
            for other in moments
            if other != one
        )
    ]


def in_short(
    schedule: str, ranks: int, microbatches: int, costs: tuple[float, ...]
) -> tuple[float, float]:
    """As `duration`, by the closed form for stages that are all as slow as the slowest rank's.

    What is idle are `ranks` - 1 steps, a third as long where the backward pass is split.
    """
    limits = SCHEDULES[schedule]
    per_rank = limits.stages_per_rank
    steps = microbatches * per_rank * (3 if limits.splits_backward else 1)
    idle = (ranks - 1) / (steps + ranks - 1)
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
    """How long a schedule takes, and the share of it in which its ranks wait.

    Args:
        schedule: A key of `SCHEDULES`.
        ranks: Of the pipeline.
        microbatches: How many there are.
        costs: For each stage, the time of its forward pass for one of them.
    """
    spans = simulate(order_of(schedule, ranks, microbatches), costs)
    return max(span.stop for span in spans), bubble(spans)
