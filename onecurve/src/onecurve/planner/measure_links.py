"""`plan.measure=true` on a CPU: how long its ranks really take to tell each other things."""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from ..launch.in_ranks import launch
from .hardware import Hardware

SMALL, LARGE = 2**10, 2**22
"""Bytes that every rank gives: one takes its latency, the other its bytes."""
TIMES = 20


def with_measured_links(hardware: Hardware, ranks: int) -> Hardware:
    """The same, with rate and latency of gloo's collectives between so many processes."""
    small, large, scattered = launch(_seconds_of_collectives, ranks, devices=ranks)
    rate = (LARGE - SMALL) * (ranks - 1) / max(1e-9, large - small)
    return hardware._replace(
        inside=rate, links=1.0, latency=small, reduce_scatter=max(1.0, scattered / large)
    )


def _seconds_of_collectives(ranks: int) -> tuple[float, float, float]:
    dist.init_process_group("gloo")
    try:
        part = torch.zeros(LARGE // 4)
        whole = torch.zeros(ranks * LARGE // 4)
        few = part[: SMALL // 4]
        return (
            _seconds_of(lambda: dist.all_gather_into_tensor(whole[: ranks * len(few)], few)),
            _seconds_of(lambda: dist.all_gather_into_tensor(whole, part)),
            _seconds_of(lambda: dist.reduce_scatter_tensor(part, whole)),
        )
    finally:
        dist.destroy_process_group()


def _seconds_of(collective: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        dist.barrier()
        started = time.perf_counter()
        collective()
        times.append(time.perf_counter() - started)
    return median(times)
