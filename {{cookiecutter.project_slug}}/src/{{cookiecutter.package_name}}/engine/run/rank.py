"""One rank of a run: what happens in a worker process around the actual work, and how it fails."""

import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from ...errors import UserError, user_error_behind
from . import machine
from .launch import Metrics, RankFailed

SECONDS_TO_BLAME_ANOTHER = 2

# What libraries warn of although it is meant so here.
EXPECTED_WARNINGS = (
    "Experiment logs directory",  # the CSV logger writes into the run directory
    ".*does not have many workers",  # data in memory needs none
    ".*LeafSpec.*is deprecated",  # Lightning's own use of PyTorch
    "You requested to overfit",  # debug=overfit: the same batches in the same order
)


def main(job: str, config: dict[str, Any], run_dir: str) -> Metrics:
    """Entry point of a worker process that torchelastic started."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(max(1, machine.count_cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    if rank == 0:
        logging.basicConfig(format="%(message)s")
        logging.getLogger().handlers[0].setLevel(logging.WARNING)
    else:
        _redirect_output(_log_file(Path(run_dir), rank))
    with log_to_file(Path(run_dir), rank):
        try:
            metrics: Metrics = import_module(f"{__package__}.{job}").work(config, Path(run_dir))
        except Exception as error:
            if refusal := user_error_behind(error):
                # The parent recognises it by this class's name, not by that of a subclass.
                raise UserError(str(refusal)) from None
            if isinstance(error, DistError) or "gloo" in str(error):
                # This rank lost contact, and is not the cause: let the agent see the other first.
                time.sleep(SECONDS_TO_BLAME_ANOTHER)
            raise
    # Only rank 0's are asked for, and a rank that waits for a queue to be read holds up the others.
    return metrics if rank == 0 else {}


@contextmanager
def log_to_file(run_dir: Path, rank: int) -> Iterator[None]:
    """Send what this process logs to ``logs/rank_N.log``, and keep hints off the console."""
    path = _log_file(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
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
        root.removeHandler(handler)
        handler.close()


def failure(error: ChildFailedError, run_dir: Path) -> Exception:
    """The exception to raise in the parent for the rank that failed first."""
    rank, first = error.get_first_failure()
    message = first.error_file_data.get("message", "")
    details = message if isinstance(message, dict) else {}
    said = str(details.get("message", ""))
    if refusal := re.match(r"UserError: (.*)", said, re.DOTALL):
        return UserError(refusal[1])
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip()
    how = f"was ended by signal {first.signal_name()}" if first.exitcode < 0 else "failed"
    where = f"rank {rank} {how} (its log: {_log_file(run_dir, rank)})"
    return RankFailed(f"{where}\n{trace}" if trace else where)


def _log_file(run_dir: Path, rank: int) -> Path:
    return run_dir / "logs" / f"rank_{rank}.log"


def _redirect_output(path: Path) -> None:
    """Send what this process and its libraries print to a file, so that the console is rank 0's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
