"""Passes signals on from the agent to the ranks that it started."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..run.outcome import SIGNALS

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def passing_on(ranks: Path, processes: int, stop_at_once: Handler) -> Iterator[list[int]]:
    """Pass signals on to the ranks that this process started.

    Args:
        ranks: The folder in which ranks that listen leave their PIDs.
        processes: How many ranks there are.
        stop_at_once: Handler for a signal while not all of them train, and for a second Ctrl-C.

    Yields:
        The signals that were passed on; the list grows.
    """
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        pids = list(filter(_lives, [int(path.name) for path in ranks.glob("*")]))
        again = number == signal.SIGINT and number in received
        received.append(number)
        if again or len(pids) < processes:
            stop_at_once(number, frame)
        for pid in pids:
            # Not SIGINT: a terminal has sent that to the ranks as well, and twice means at once.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1 if number == signal.SIGINT else number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lives(pid: int) -> bool:
    """Whether a rank that left its PID is still there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
