"""Directs a rank's logs and output to ``logs/rank_N.log`` in the run directory."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Verbose = bool | Sequence[str]
"""``hydra.verbose``: whether all loggers log debug messages, or the names of those that do."""

# Warnings of libraries about what is intended here.
EXPECTED_WARNINGS = (
    "The `srun` command is available",  # but the user starts ranks in another way
    "Experiment logs directory",  # the CSV logger writes into the run directory
    "Checkpoint directory .* is not empty",  # a resumed run continues in it
    ".*does not have many workers",  # data in memory needs none
    ".*LeafSpec.*is deprecated",  # Lightning's own use of PyTorch
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
