"""Jobs that run side by side on one machine share it: each sees its own GPUs, or its own cores."""

import multiprocessing
import os
import time
from pathlib import Path
from typing import IO, Any, TypeVar

from .. import machine
from ..launch import forkserver, quick_exit
from ..lock import take

SECONDS_BETWEEN_LOOKS = 0.1

T = TypeVar("T")

_place: IO[str] | None = None
"""The lock of this process's place among those that run jobs; it keeps it for good."""


def is_side_by_side(hydra: Any) -> bool:
    """Whether jobs run in processes beside each other that this command starts."""
    return str(hydra.launcher._target_).endswith(".JoblibLauncher")


def take_share(sweep_dir: Path, parallel: int) -> None:
    """Make one of `parallel` equal shares of this machine all that this process sees.

    Called in a process that runs jobs and nothing else, before torch is imported. With fewer GPUs,
    or cores, than processes some of them share one; what cannot be shared out evenly is left over.

    Args:
        sweep_dir: Where the processes agree on who has which share.
        parallel: How many of them there are.
    """
    global _place
    if _place is not None:
        return
    # With its last job done it ends at once.
    quick_exit.last_of_all(status=0)
    # joblib's own way to start processes is unknown to those that this one starts.
    if forkserver.is_here():
        multiprocessing.set_start_method("forkserver", force=True)
    place, _place = _free_place(sweep_dir / ".places", parallel)
    if count := machine.count_gpus():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(part(visible.split(","), place, parallel))
        machine.count_gpus.cache_clear()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, part(cores, place, parallel))
    else:
        threads = max(1, machine.count_cores() // parallel)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def part(things: list[T], place: int, parallel: int) -> list[T]:
    """The share of one of several processes: neighbours, as many for each, and at least one.

    Args:
        things: What is shared out.
        place: Which of the processes, from 0.
        parallel: How many processes there are.
    """
    each = len(things) // parallel
    if each == 0:
        return [things[place % len(things)]]
    return things[place * each : (place + 1) * each]


def _free_place(folder: Path, parallel: int) -> tuple[int, IO[str]]:
    while True:
        for place in range(parallel):
            if lock := take(folder / str(place)):
                return place, lock
        # One that another process is about to leave.
        time.sleep(SECONDS_BETWEEN_LOOKS)
