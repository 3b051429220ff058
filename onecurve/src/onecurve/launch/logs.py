"""Where a rank's log and output go: ``logs/rank_N.log`` in the run directory."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Verbose = bool | str | Sequence[str]
"""``hydra.verbose``: whether all loggers tell the details, or the names of those that do."""

# What libraries warn of although it is meant so here.
EXPECTED_WARNINGS = (
    "The `srun` command is available",  # and not asked for: ranks are started in other ways, too
    "Experiment logs directory",  # the CSV logger writes into the run directory
    "Checkpoint directory .* is not empty",  # the run goes on in it
    ".*does not have many workers",  # data in memory needs none
    ".*LeafSpec.*is deprecated",  # Lightning's own use of PyTorch
    "You requested to overfit",  # debug=overfit: the same batches in the same order
    # Layers that pass a tensor on do so; who changes one in place is told by autograd.
    "FSDP2-wrapped module .* returned a view tensor",
)


def log_file(run_dir: Path, rank: int) -> Path:
    """The log of a rank."""
    return run_dir / "logs" / f"rank_{rank}.log"


@contextmanager
def log_to_file(run_dir: Path, rank: int, verbose: Verbose = False) -> Iterator[None]:
    """Send what this process logs to its file, and keep hints off the console."""
    path = log_file(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    # A log that cannot be written, on a full disk, must not fill the screen instead.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbose is True else logging.INFO)
    named = () if isinstance(verbose, bool) else verbose
    detailed = [logging.getLogger(name) for name in ([named] if isinstance(named, str) else named)]
    before = [logger.level for logger in detailed]
    for logger in detailed:
        logger.setLevel(logging.DEBUG)
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        # Lightning prints by itself where it was imported before logging was set up.
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    try:
        yield
    except Exception:
        # To the file alone: the console shows a failure once, when all ranks have ended.
        details = logging.LogRecord(__name__, logging.ERROR, "", 0, "failed", None, sys.exc_info())
        handler.handle(details)
        raise
    finally:
        # The next job of a sweep may have others.
        for logger, level in zip(detailed, before, strict=True):
            logger.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def print_lines_at_once() -> None:
    """As a terminal gets them: else a file gets them by the page, and none of a rank that dies."""
    # A notebook has a stream of its own.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def redirect_output(path: Path) -> None:
    """Send what this process and its libraries print to a file, so that the console is rank 0's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
