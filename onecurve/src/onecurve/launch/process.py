"""A process of a run: its logs and its output, `breakpoint()` in it, and its quick end."""

import atexit
import io
import logging
import multiprocessing.util
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import say

Verbose = bool | Sequence[str]
"""``hydra.verbose``: whether all loggers log debug messages, or the names of those that do."""

# Warnings of libraries about what is intended here.
EXPECTED_WARNINGS = (
    "The `srun` command is available",  # but the user starts ranks in another way
    "Experiment logs directory",  # the CSV logger writes into the run directory
    "Checkpoint directory .* is not empty",  # a resumed run continues in it
    ".*does not have many workers",  # data in memory needs none
    ".*LeafSpec.*is deprecated",  # Lightning's own use of PyTorch
    # The strategies say it in other words.
    ".*(training_step|configure_optimizers)` returned `None`",
    ".*ModelCheckpoint.* could not find the monitored key",  # and there was no validation yet
    "You requested to overfit",  # debug=overfit: the same batches in the same order
    # Layers may return their input; autograd reports in-place changes of it.
    "FSDP2-wrapped module .* returned a view tensor",
)


def log_file(run_dir: Path, rank: int) -> Path:
    """The log file of a rank."""
    return run_dir / "logs" / f"rank_{rank}.log"


@contextmanager
def log_to_file(run_dir: Path, rank: int, verbose: Verbose = False) -> Iterator[None]:
    """Write the logs of this process to its file, and keep hints off the console."""
    path = log_file(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    # If the log cannot be written, on a full disk, do not print every record instead.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbose is True else logging.INFO)
    detailed = [logging.getLogger(name) for name in (() if isinstance(verbose, bool) else verbose)]
    before = [logger.level for logger in detailed]
    for logger in detailed:
        logger.setLevel(logging.DEBUG)
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        # Lightning adds its own handlers if it was imported before logging was set up.
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    try:
        yield
    except Exception:
        # To the file only: the console shows a failure once, after all ranks have ended.
        details = logging.LogRecord(__name__, logging.ERROR, "", 0, "failed", None, sys.exc_info())
        handler.handle(details)
        raise
    finally:
        # The next job of a sweep may have other levels.
        for logger, level in zip(detailed, before, strict=True):
            logger.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def print_lines_at_once() -> None:
    """Flush the output after each line, so that nothing is lost if a rank dies."""
    # A notebook's stdout is of another class.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def redirect_output(path: Path) -> None:
    """Redirect the output of this process and its libraries to a file: only rank 0 prints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def stop_at_breakpoints(rank: int, chosen: int) -> None:
    """Give the chosen rank the terminal at `breakpoint()`: ranks have no standard input.

    The others ignore it, and wait for that rank at the next collective.
    """

    def stop(*_arguments: Any, **_named: Any) -> None:
        try:
            # Two files, because a terminal does not support seeking.
            reads, writes = open("/dev/tty"), open("/dev/tty", "w", buffering=1)  # noqa: SIM115
        except OSError:
            say(f"rank {rank} ignores breakpoint(): there is no terminal; run the command in one")
            sys.breakpointhook = lambda *_, **__: None
            return
        import pdb

        debugger = pdb.Pdb(stdin=reads, stdout=writes, nosigint=True)  # Ctrl-C stops the run
        debugger.prompt = f"(Pdb, rank {rank}) "
        debugger.set_trace(sys._getframe(1))

    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = stop if rank == chosen else lambda *_, **__: None


class QuickExit:
    """Ends this process in an exit handler that runs after all others, with a status if it has one.

    Python would need seconds to tear down torch and Lightning. Create it before importing
    libraries, so that their exit handlers run first. If another program such as pytest runs this
    one as a part of itself, nothing happens.
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
