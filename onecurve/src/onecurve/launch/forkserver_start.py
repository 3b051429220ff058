"""The first module that the forkserver imports: how it ends, and how its children begin.

With its last client gone it ends at once. It was started deaf to Ctrl-C; its children are not.
"""

import gc
import os
import signal
import sys
from types import TracebackType

from .quick_exit import QuickExit


def _in_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # All that was imported stays: the garbage collector need not walk through it.
    gc.freeze()
    sys.excepthook = _unless_nobody_waits


def _unless_nobody_waits(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Pass over that the command was stopped which asked for this child, before it was there.

    Its semaphores are gone with it. From `_bootstrap` on multiprocessing shows errors by itself.
    """
    innermost = traceback
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    where = innermost.tb_frame.f_globals.get("__name__") if innermost else None
    if not (isinstance(error, FileNotFoundError) and where == "multiprocessing.synchronize"):
        sys.__excepthook__(kind, error, traceback)


QuickExit(status=0)
os.register_at_fork(after_in_child=_in_child)
