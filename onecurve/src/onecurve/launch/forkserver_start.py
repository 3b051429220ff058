"""The first module that the forkserver imports: sets up how it ends and how its children begin.

The server ends at once when its last client is gone. It was started with signals blocked; its
children unblock them.
"""

import gc
import os
import signal
import sys
from types import TracebackType

from ..machine import SIGNALS
from .process import QuickExit


def _in_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # Imported objects stay alive: the garbage collector need not visit them.
    gc.freeze()
    sys.excepthook = _show_unless_parent_is_gone


def _show_unless_parent_is_gone(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Hide the error of a child whose parent was stopped before the child had started.

    The parent's semaphores are gone then. Later errors are shown by multiprocessing itself.
    """
    innermost = traceback
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    where = innermost.tb_frame.f_globals.get("__name__") if innermost else None
    if not (isinstance(error, FileNotFoundError) and where == "multiprocessing.synchronize"):
        sys.__excepthook__(kind, error, traceback)


QuickExit(status=0)
os.register_at_fork(after_in_child=_in_child)
