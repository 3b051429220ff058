"""The predicted timeline has the idle share that the papers give."""

from typing import get_args

import pytest

import onecurve.planner.timeline as timeline
import onecurve.strategies.pipeline.limits as limits
from onecurve.planner.pipeline import order_of

SIZES = ((4, 8), (4, 16), (2, 8), (3, 6))


def test_the_command_takes_the_schedules_that_there_are() -> None:
    assert get_args(limits.Schedule) == tuple(limits.SCHEDULES)


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
@pytest.mark.parametrize("schedule", limits.SCHEDULES)
def test_the_bubble_is_the_closed_form(schedule: str, ranks: int, microbatches: int) -> None:
    """Warm-up and drain take ranks - 1 steps: of a third of the length where backward is split."""
    per_rank = limits.SCHEDULES[schedule].stages_per_rank
    steps = per_rank * microbatches
    if schedule in ("interleaved_zero_bubble", "zbv"):
        steps *= 3
    expected = (ranks - 1) / (steps + ranks - 1)
    said = limits.idle_share(schedule, ranks, microbatches, ranks * per_rank)
    assert said == pytest.approx(expected)
    spans = timeline.simulate(order_of(schedule, ranks, microbatches), [1.0] * (ranks * per_rank))
    assert timeline.bubble(spans) == pytest.approx(expected)


def test_an_uneven_partition_waits_for_its_largest_stage() -> None:
    """By hand: before stage 1 there is one forward pass of stage 0, after it one backward pass."""
    spans = timeline.simulate(order_of("gpipe", 2, 2), [1.0, 3.0])
    assert max(span.stop for span in spans) == 1 + 6 + 12 + 2
    assert timeline.bubble(spans) == pytest.approx(1 - (6 + 18) / (2 * 21))
