"""Ends a process at once: Python would need seconds to tear down torch and Lightning."""

import atexit
import logging
import multiprocessing.util
import os
import sys
from contextlib import suppress


class QuickExit:
    """Ends this process in an exit handler that runs after all others.

    Create it before importing libraries, so that their exit handlers run first. If another program
    such as pytest runs this one as a part of itself, nothing happens.

    Attributes:
        status: The exit status; None lets Python exit normally.
    """

    def __init__(self, status: int | None = None) -> None:
        self.status = status
        self._program = sys.modules["__main__"]
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.status is None or self._program is not sys.modules["__main__"]:
            return
        # os._exit skips handlers that were registered earlier: run multiprocessing's here.
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            # The stream may be closed, or the disk full: exit with the status all the same.
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(self.status)
