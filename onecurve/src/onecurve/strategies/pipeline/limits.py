"""The limits of each schedule as plain numbers, so that mistakes are rejected without torch.

Sources: GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019), breadth-first (Lamy-Poirier 2023),
interleaved 1F1B (Narayanan et al. 2021), zero bubble and ZBV (Qi et al. 2024), as implemented in
https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ...torch_versions import too_old

Schedule = Literal[
    "gpipe", "1f1b", "looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble", "zbv"
]


class Limits(NamedTuple):
    """What a schedule requires."""

    torch_class: str
    """The name of its class in `torch.distributed.pipelining.schedules`."""
    stages_per_rank: int
    """The default."""
    fixed: bool
    """Whether the default is the only number that it supports."""
    splits_backward: bool = False
    """Whether it computes gradients of inputs and of weights separately."""


SCHEDULES = {
    "gpipe": Limits("ScheduleGPipe", 1, fixed=True),
    "1f1b": Limits("Schedule1F1B", 1, fixed=True),
    "looped_bfs": Limits("ScheduleLoopedBFS", 2, fixed=False),
    "interleaved_1f1b": Limits("ScheduleInterleaved1F1B", 2, fixed=False),
    "interleaved_zero_bubble": Limits(
        "ScheduleInterleavedZeroBubble", 2, False, splits_backward=True
    ),
    "zbv": Limits("ScheduleZBVZeroBubble", 2, True, splits_backward=True),
}


def available() -> tuple[str, ...]:
    """The schedules that the installed version of PyTorch can run."""
    return tuple(name for name in SCHEDULES if not too_old(f"strategy.schedule={name}"))


def takes(schedule: str, microbatches: int, num_ranks: int) -> bool:
    """Whether a schedule runs with this many micro-batches on this many ranks."""
    if schedule == "1f1b":
        return microbatches >= num_ranks
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        return microbatches % max(1, microbatches // num_ranks) == 0
    return True


def idle_share(schedule: str, ranks: int, microbatches: int, stages: int) -> float:
    """The share of the time in which ranks wait, with stages of equal cost: the bubble."""
    # `ranks` - 1 steps, a third as long where the backward pass is split.
    steps = microbatches * stages // ranks * (3 if SCHEDULES[schedule].splits_backward else 1)
    return (ranks - 1) / (steps + ranks - 1)


def nearest(schedule: str, wanted: int, num_ranks: int, numbers: Iterable[int]) -> int | None:
    """The number of micro-batches nearest to the wanted one that a schedule supports, if any."""
    fitting = [number for number in numbers if takes(schedule, number, num_ranks)]
    return min(fitting, key=lambda number: (abs(number - wanted), -number), default=None)


def split(
    schedule: str, microbatches: int, num_ranks: int, batch_size: int, least: int = 1
) -> tuple[str, int]:
    """The schedule and the number of equal micro-batches for a batch of any size.

    Equal, because a mean over micro-batches is the batch's only then. The number is the wanted one
    where it divides the batch, else the nearest that does, up to twice as many; a batch for which
    `1f1b` finds none goes through `gpipe`, which takes any. A micro-batch has `least` samples, if
    there are so many.
    """
    most = max(1, min(batch_size // least, 2 * microbatches))
    divisors = [number for number in range(1, most + 1) if batch_size % number == 0]
    count = nearest(schedule, microbatches, num_ranks, divisors)
    return (
        (schedule, count) if count else split("gpipe", microbatches, num_ranks, batch_size, least)
    )
