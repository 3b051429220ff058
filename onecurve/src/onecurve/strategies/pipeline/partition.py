"""Which layers make a stage, and which rank holds it.

Exact: of all ways to cut the sequence of layers, the one whose largest stage costs least. With
several stages a rank it is still the largest stage that counts, not the rank's sum: every stage is
a step that the others wait for.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ...errors import UserError


class Partition(NamedTuple):
    """Stages of a pipeline: consecutive layers, each on one rank."""

    ranges: list[range]
    """For each stage, the indices of its layers."""
    owner: list[int]
    """For each stage, its rank in the pipeline."""
    costs: list[float]
    """For each stage, the sum of its layers' costs."""

    @classmethod
    def of(
        cls,
        costs: Sequence[float],
        *,
        num_ranks: int,
        stages_per_rank: int,
        v_shaped: bool,
        balance: Sequence[int] | str,
    ) -> "Partition":
        """Cut a sequence of layers into stages.

        Args:
            costs: Cost of each layer, in any unit.
            num_ranks: Ranks of the pipeline.
            stages_per_rank: Stages that each of them holds.
            v_shaped: Whether the stages go from rank to rank and back, instead of round and round.
            balance: Number of layers of each stage, or "auto".
        """
        num_stages = num_ranks * stages_per_rank
        if len(costs) < num_stages:
            raise UserError(
                f"strategy=pipeline: {len(costs)} layers cannot make {num_stages} stages "
                f"({num_ranks} ranks with {stages_per_rank} each); "
                f"{_fewer_stages(len(costs), num_ranks)}"
            )
        if balance == "auto":
            counts = balanced(costs, num_stages)
        else:
            counts = by_hand(balance, len(costs), num_stages)
        stops = list(accumulate(counts))
        ranges = [range(stop - count, stop) for count, stop in zip(counts, stops, strict=True)]
        owner = [0] * num_stages
        for rank in range(num_ranks):
            for stage in stages_of_rank(rank, num_ranks, stages_per_rank, v_shaped):
                owner[stage] = rank
        return cls(ranges, owner, [sum(costs[i] for i in range_) for range_ in ranges])

    @property
    def imbalance(self) -> float:
        """Cost of the largest stage over the mean; 1 is perfect."""
        return max(self.costs) * len(self.costs) / sum(self.costs)


def balanced(costs: Sequence[float], num_stages: int) -> list[int]:
    """Cut a sequence of layers so that the most expensive stage is as cheap as possible.

    Among the ways that reach this minimum it takes one with the smallest sum of squared stage
    costs, the most even one. Dynamic programming over all ways to cut, layers² × stages steps.

    Returns:
        The number of layers of each stage, at least 1.
    """
    smallest, _ = _cheapest(costs, num_stages, max)

    def add_square(so_far: float, stage: float) -> float:
        return so_far + stage * stage if stage <= smallest else math.inf

    _, counts = _cheapest(costs, num_stages, add_square)
    return counts


def by_hand(given: Any, num_layers: int, num_stages: int) -> list[int]:
    """Check the numbers of layers that somebody chose."""
    counts = list(given) if isinstance(given, Sequence) else []
    whole = all(isinstance(count, int) and count >= 1 for count in counts)
    if whole and len(counts) == num_stages and sum(counts) == num_layers:
        return counts
    # Rounded down at each boundary, so that they add up.
    stops = [num_layers * stage // num_stages for stage in range(num_stages + 1)]
    even = [stop - start for start, stop in pairwise(stops)]
    raise UserError(
        f"strategy.balance={_written(given)}: must be {num_stages} numbers from 1 that add up to "
        f"{num_layers} layers, such as 'strategy.balance={_written(even)}', or auto"
    )


def stages_of_rank(
    rank: int, num_ranks: int, stages_per_rank: int, v_shaped: bool = False
) -> list[int]:
    """The stages that a rank holds: every `num_ranks`-th one, or, V-shaped, one down and one up."""
    if v_shaped:
        return [rank, 2 * num_ranks - 1 - rank]
    return [rank + turn * num_ranks for turn in range(stages_per_rank)]


def _cheapest(
    costs: Sequence[float], num_stages: int, combine: Callable[[float, float], float]
) -> tuple[float, list[int]]:
    """The cut with the least total, where `combine` adds a stage's cost to the total before it."""
    before = [0.0, *accumulate(costs)]
    layers = range(1, len(costs) + 1)
    # least[n]: the least total of the first n layers, cut into the stages so far.
    least = [0.0] + [math.inf] * len(costs)
    starts = []
    for _ in range(num_stages):
        totals, start_of = [math.inf], [0]
        for stop in layers:
            total, start = min(
                (combine(least[start], before[stop] - before[start]), start)
                for start in range(stop)
            )
            totals.append(total)
            start_of.append(start)
        least = totals
        starts.append(start_of)
    counts = []
    stop = len(costs)
    for start_of in reversed(starts):
        counts.append(stop - start_of[stop])
        stop = start_of[stop]
    return least[-1], counts[::-1]


def _fewer_stages(num_layers: int, num_ranks: int) -> str:
    if num_layers >= num_ranks:
        return "use strategy.schedule=1f1b, which needs one stage a rank"
    return f"use trainer.devices={num_layers}, or a network with more layers"


def _written(value: Any) -> str:
    """A value as one types it on the command line."""
    return str(value).replace(" ", "")
