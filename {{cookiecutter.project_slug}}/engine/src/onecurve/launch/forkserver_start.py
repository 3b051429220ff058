"""The first module that the forkserver imports: how it ends, and how its children begin.

With its last client gone it ends at once. It was started deaf to Ctrl-C; its children are not.
"""

import gc
import os
import signal

from . import quick_exit


def _in_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # All that was imported stays: the garbage collector need not walk through it.
    gc.freeze()


quick_exit.status = 0
quick_exit.last_of_all()
os.register_at_fork(after_in_child=_in_child)
