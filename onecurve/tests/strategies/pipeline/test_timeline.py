"""The predicted timeline has the idle share that the papers give, and is drawn."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from PIL import Image
from torch.distributed.pipelining import schedules

import onecurve.strategies.pipeline.limits as limits
import onecurve.strategies.pipeline.partition as partition
import onecurve.strategies.pipeline.report as timeline

SIZES = ((4, 8), (4, 16), (2, 8), (3, 6))


def order_of(schedule: str, ranks: int, microbatches: int) -> Any:
    """What PyTorch's schedule does on each rank; it asks its stages for no more than numbers."""
    per_rank = limits.SCHEDULES[schedule].stages_per_rank
    stages = [
        SimpleNamespace(
            stage_index=index,
            num_stages=ranks * per_rank,
            group_size=ranks,
            group_rank=0,
            submod=None,
            has_backward=True,
            is_first=index == 0,
            is_last=index == ranks * per_rank - 1,
        )
        for index in partition.stages_of_rank(0, ranks, per_rank, schedule == "zbv")
    ]
    build = getattr(schedules, limits.SCHEDULES[schedule].torch_class)
    one_stage = issubclass(build, schedules.PipelineScheduleSingle)
    built = build(stages[0] if one_stage else stages, microbatches, loss_fn=lambda *args: None)
    return built.pipeline_order


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
    spans = timeline.simulate(order_of(schedule, ranks, microbatches), [1.0] * (ranks * per_rank))
    assert timeline.bubble(spans) == pytest.approx(expected)


def test_an_uneven_partition_waits_for_its_largest_stage() -> None:
    """By hand: before stage 1 there is one forward pass of stage 0, after it one backward pass."""
    spans = timeline.simulate(order_of("gpipe", 2, 2), [1.0, 3.0])
    assert max(span.stop for span in spans) == 1 + 6 + 12 + 2
    assert timeline.bubble(spans) == pytest.approx(1 - (6 + 18) / (2 * 21))


def test_ranks_that_wait_for_each_other_are_an_error() -> None:
    order = order_of("gpipe", 2, 2)
    order[0].reverse()
    with pytest.raises(ValueError, match="circle"):
        timeline.simulate(order, [1.0, 1.0])


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_the_picture_shows_each_rank_at_work(schedule: str, tmp_path: Path) -> None:
    spans = timeline.simulate(
        order_of(schedule, 2, 4), [1.0] * 2 * limits.SCHEDULES[schedule].stages_per_rank
    )
    path = timeline.draw(spans, tmp_path / "pipeline.png", schedule)
    with Image.open(path) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    blue, green, yellow, grey = (
        (0x4C, 0x78, 0xA8),
        (0x54, 0xA2, 0x4B),
        (0xEE, 0xCA, 0x3B),
        (0xEE,) * 3,
    )
    assert {blue, green, grey} <= colours
    assert (yellow in colours) == (schedule == "zbv")
    assert path.stat().st_size < 50_000
