"""Ends a process at once: Python would take seconds to take torch and Lightning apart."""

import atexit
import logging
import multiprocessing.util
import os
import sys
from contextlib import suppress


class QuickExit:
    """Ends this process as the last thing that happens at its exit.

    Made before the libraries are imported, whose own exit handlers then come before it. A program
    that only runs this one as a part, as pytest does, is not ended so.

    Attributes:
        status: What to end with; None leaves the end to Python.
    """

    def __init__(self, status: int | None = None) -> None:
        self.status = status
        self._program = sys.modules["__main__"]
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.status is None or self._program is not sys.modules["__main__"]:
            return
        # os._exit skips what was registered earlier: run multiprocessing's here.
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            # On a full disk, or closed: the status is told all the same.
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(self.status)
