"""The first module that the forkserver imports: sets up how it ends and how its children begin.

The server ends at once when its last client is gone: on Linux also while it still imports, of which
a busy machine may make minutes. It was started with signals blocked; its children unblock them.
"""

import ctypes
import gc
import os
import signal
import sys
import traceback
from functools import partial
from types import TracebackType

from ..machine import SIGNALS
from .forkserver import CLIENT
from .process import QuickExit

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>; children do not inherit what it sets


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
    if kind is not FileNotFoundError or not last or "synchronize" not in last[0].filename:
        sys.__excepthook__(kind, error, trace)


if sys.platform == "linux" and (client := os.environ.pop(CLIENT, None)):
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(client):  # it has ended before
        os._exit(0)
    # It is the end of the thread that started it which kills: not once there are ranks, of others.
    os.register_at_fork(before=partial(prctl, PR_SET_PDEATHSIG, 0))
QuickExit(status=0)
os.register_at_fork(after_in_child=_in_child)
