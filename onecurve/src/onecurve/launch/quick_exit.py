"""Ends a process at once: Python would take seconds to take torch and Lightning apart."""

import atexit
import logging
import multiprocessing.util
import os
import sys
from contextlib import suppress
from types import ModuleType

status: int | None = None
"""What to end with; None leaves the end to Python."""


def last_of_all() -> None:
    """End this process as the last thing that happens at its exit.

    Called before the libraries are imported, whose own exit handlers then come before it. A program
    that only runs this one as a part, as pytest does, goes on.
    """
    atexit.register(_leave, sys.modules["__main__"])


def _leave(program: ModuleType) -> None:
    if status is None or program is not sys.modules["__main__"]:
        return
    # What was to come after this one, as it was registered before.
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # On a full disk, or closed: the status is told all the same.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
