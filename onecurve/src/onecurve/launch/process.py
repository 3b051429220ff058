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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pdb

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


TERMINAL = "/dev/tty"


class Breakpoint:
    """The `sys.breakpointhook` of a rank, which has no standard input.

    The chosen rank gets the terminal, and the others wait for it at the next collective.
    """

    def __init__(self, rank: int, chosen: int) -> None:
        self.rank = rank
        self.chosen = chosen
        self.debugger: pdb.Pdb | None = None
        self.passes = False

    def __call__(self, *_arguments: Any, **_named: Any) -> None:
        """Stop in the caller's frame, or report once why that is not possible."""
        if self.passes:
            return
        try:
            # Two files, because a terminal does not support seeking.
            reads, writes = open(TERMINAL), open(TERMINAL, "w", buffering=1)  # noqa: SIM115
        except OSError:
            self.passes = True
            print(
                f"rank {self.rank} ignores breakpoint(): there is no terminal; run the command in "
                "one, or set PYTHONBREAKPOINT to a debugger that needs none",
                file=sys.stderr,
                flush=True,
            )
            return
        if self.rank != self.chosen:
            self.passes = True
            print(
                f"rank {self.rank} ignores breakpoint(), at which rank {self.chosen} stops; "
                f"launch.debug_rank={self.rank} stops this rank instead",
                file=writes,
            )
            return
        if self.debugger is None:
            import pdb

            # Ctrl-C still stops the run.
            self.debugger = pdb.Pdb(stdin=reads, stdout=writes, nosigint=True)
            self.debugger.prompt = f"(Pdb, rank {self.rank}) "
        self.debugger.set_trace(sys._getframe(1))


class QuickExit:
    """Ends this process in an exit handler that runs after all others.

    Python would need seconds to tear down torch and Lightning. Create it before importing
    libraries, so that their exit handlers run first. If another program such as pytest runs this
    one as a part of itself, nothing happens.

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
