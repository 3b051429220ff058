"""Ends a process at once: Python would take seconds to take torch and Lightning apart."""

import atexit
import logging
import multiprocessing.util
import os
import sys
from contextlib import suppress
from types import ModuleType


class End:
    """How this process ends.

    Attributes:
        status: What to end with; None leaves the end to Python.
    """

    status: int | None = None


def last_of_all(status: int | None = None) -> End:
    """End this process as the last thing that happens at its exit.

    Called before the libraries are imported, whose own exit handlers then come before it. A program
    that only runs this one as a part, as pytest does, is not ended so.

    Args:
        status: What to end with, if that is known already.
    """
    end = End()
    end.status = status
    atexit.register(_leave, end, sys.modules["__main__"])
    return end


def _leave(end: End, program: ModuleType) -> None:
    if end.status is None or program is not sys.modules["__main__"]:
        return
    # os._exit skips what was registered earlier: run multiprocessing's here.
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # On a full disk, or closed: the status is told all the same.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(end.status)
