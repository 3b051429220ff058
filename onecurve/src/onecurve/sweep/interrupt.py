"""Ctrl-C while jobs run side by side: each of them saves, none begins, and then the sweep ends.

A terminal sends it to every process. The one that has started the others would end them at once,
before they have saved.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .directory import STOPPED

asked = False
"""Whether somebody pressed it since the sweep began."""

_before: Any = signal.default_int_handler


def leave_to_the_jobs(sweep_dir: Path) -> None:
    """Let the jobs end by themselves; a second Ctrl-C ends everything at once."""
    global asked, _before

    def ask(number: int, frame: object) -> None:
        global asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        (sweep_dir / STOPPED).touch()

    asked = False
    _before = signal.signal(signal.SIGINT, ask)


@contextmanager
def ends_this_job() -> Iterator[None]:
    """In a process that only runs jobs: Ctrl-C ends the job, and not the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        # It has saved what there was, but the others would be ended with this process.
        pass
    finally:
        # Not SIG_IGN, which the ranks of the next job would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)


def forget() -> bool:
    """Whether the sweep was asked to end; from now on Ctrl-C does what it did before."""
    signal.signal(signal.SIGINT, _before)
    return asked
