"""The first module that the forkserver imports: sets up how it ends and how its children begin.

The server ends at once when its last client is gone. It was started with signals blocked; its
children unblock them.
"""

import gc
import os
import signal
import sys
import traceback
from types import TracebackType

from ..machine import SIGNALS
from .process import QuickExit


def _in_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # Imported objects stay alive: the garbage collector need not visit them.
    gc.freeze()
    sys.excepthook = _show_unless_parent_is_gone


def _show_unless_parent_is_gone(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Hide the error of a child that finds no semaphore: its parent was stopped before it began."""
    last = traceback.extract_tb(trace)[-1:]
    if kind is not FileNotFoundError or not last or "multiprocessing" not in last[0].filename:
        sys.__excepthook__(kind, error, trace)


QuickExit(status=0)
os.register_at_fork(after_in_child=_in_child)
