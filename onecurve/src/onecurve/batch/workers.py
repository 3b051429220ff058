"""The worker processes of a loader: they leave signals to their rank, and end with it.

A signal often reaches every process of a run: Ctrl-C, and those of Slurm. A rank then finishes its
step and saves, for which it needs its workers.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from torch.utils.data import DataLoader

from ..machine import SIGNALS, signals_blocked

# macOS cannot tell who has sent a signal: there SIGTERM ends a worker, as it does by default.
KNOWS_SENDERS = hasattr(signal, "sigtimedwait")
SECONDS_BETWEEN_LOOKS = 1


class WorkerContext(BaseContext):
    """A multiprocessing context whose processes are started as those of another, and kept so."""

    def __init__(self, context: BaseContext) -> None:
        self._name = context.get_start_method()
        self._context: Any = context

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:
        """A process that has not started, as DataLoader asks for it."""
        process = self._context.Process(target=_work, args=(target, args))
        # It inherits the mask: no signal ends it before `_work` begins.
        process.start = partial(_start, process.start)
        return process


def keep_workers(loader: Any) -> None:
    """Let the workers of a DataLoader outlive signals, and end when this process does."""
    if os.name != "posix" or not isinstance(loader, DataLoader) or not loader.num_workers:
        return
    context = loader.multiprocessing_context or multiprocessing.get_context()
    if not isinstance(context, WorkerContext):
        loader.multiprocessing_context = WorkerContext(context)


def _start(start: Callable[[], None]) -> None:
    with signals_blocked():
        start()


def _work(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    # A process forked from a rank has the rank's handlers so far, and may have lost the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=_end_with_the_rank, name="rank", daemon=True).start()
    # Handlers, for a program that a data set starts would inherit signals that are ignored.
    for number in SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, _leave_to_the_rank)
    others = {*SIGNALS} - ({signal.SIGTERM} if KNOWS_SENDERS else set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, others)
    target(*args)


def _leave_to_the_rank(number: int, frame: object) -> None:
    pass


def _end_with_the_rank() -> None:
    """End this process once its rank has ended or sends SIGTERM, but not at anybody else's.

    A forkserver may be the parent of the process, and lives on.
    """
    rank, parent = multiprocessing.parent_process(), os.getppid()
    assert rank is not None
    while os.getppid() == parent and rank.is_alive():
        if not KNOWS_SENDERS:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            continue
        sent = signal.sigtimedwait([signal.SIGTERM], SECONDS_BETWEEN_LOOKS)
        if sent is not None and sent.si_pid == rank.pid:
            break
    os._exit(0)
