"""One rank of a run: what happens in a worker process around the actual work, and how it fails."""

import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError

from ...errors import UserError, user_error_behind
from . import machine, stopping
from .launch import Metrics, RankFailed

SECONDS_TO_BLAME_ANOTHER = 2
# In what `work` returns: the signal that stopped training.
STOPPED = "stopped_by_signal"

# What libraries warn of although it is meant so here.
EXPECTED_WARNINGS = (
    "Experiment logs directory",  # the CSV logger writes into the run directory
    "Checkpoint directory .* is not empty",  # the run goes on in it
    ".*does not have many workers",  # data in memory needs none
    ".*LeafSpec.*is deprecated",  # Lightning's own use of PyTorch
    "You requested to overfit",  # debug=overfit: the same batches in the same order
)


def main(job: str, config: dict[str, Any], run_dir: str, listening: str | None = None) -> Metrics:
    """Entry point of a worker process that torchelastic started."""
    if listening:
        stopping.listening = Path(listening)
        _end_with_the_agent()
    ranks = machine.ranks_around()
    assert ranks is not None, "whoever starts a rank tells it which one it is"
    rank = ranks.rank
    # Where somebody has set it, torch has read it.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, machine.count_cores() // ranks.on_this_node))
    if rank == 0:
        logging.basicConfig(format="%(message)s")
        logging.getLogger().handlers[0].setLevel(logging.WARNING)
    else:
        _redirect_output(_log_file(Path(run_dir), rank))
    # Imported before logging is set up: Lightning adds handlers of its own.
    work: Callable[..., Metrics] = import_module(f"{__package__}.{job}").work
    with log_to_file(Path(run_dir), rank):
        try:
            metrics = work(config, Path(run_dir))
        except Exception as error:
            if refusal := user_error_behind(error):
                # The parent recognises it by this class's name, not by that of a subclass.
                raise UserError(str(refusal)) from None
            if _lost_contact(f"{type(error).__name__}: {error}"):
                # This rank lost contact, and is not the cause: let the agent see the other first.
                time.sleep(SECONDS_TO_BLAME_ANOTHER)
            raise
    # Only rank 0's are asked for, and a rank that waits for a queue to be read holds up the others.
    return metrics if rank == 0 or STOPPED in metrics else {}


def _end_with_the_agent() -> None:
    """A rank whose agent was killed would train on, in a run that is gone on with meanwhile."""
    agent = multiprocessing.parent_process()
    assert agent is not None

    def watch() -> None:
        agent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="agent", daemon=True).start()


def unless_stopped(metrics: Metrics, received: Sequence[int] = ()) -> Metrics:
    """The metrics of a run that went to its end.

    Args:
        metrics: What `work` returned.
        received: Signals that this process passed on to the ranks.

    Raises:
        RankFailed: If training was stopped by a signal. Its exit status is 128 + the signal.
    """
    if STOPPED not in metrics:
        return metrics
    number = int(received[0] if received else metrics[STOPPED])
    raise RankFailed(
        f"stopped by {signal.Signals(number).name} after step {metrics['global_step']:g}, which is "
        "saved; go on with resume=last",
        128 + number,
    )


@contextmanager
def no_group_left() -> Iterator[None]:
    """The one rank of a strategy has a process group too, which the next job must not find."""
    mine = not distributed.is_initialized()
    try:
        yield
    finally:
        if mine and distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def log_to_file(run_dir: Path, rank: int) -> Iterator[None]:
    """Send what this process logs to ``logs/rank_N.log``, and keep hints off the console."""
    path = _log_file(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    # A log that cannot be written, on a full disk, must not fill the screen instead.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
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


def started_elsewhere(job: str, config: dict[str, Any], run_dir: Path) -> Metrics:
    """The part of a rank that torchrun or srun started: as `main`, but it tells its own failure.

    Raises:
        RankFailed: If the work failed; names the rank and holds its traceback.
        UserError: If the work raised one.
    """

    def ended(number: int, _frame: object) -> None:
        raise RankFailed(f"stopped by {signal.Signals(number).name}", 128 + number)

    # torchrun ends the other ranks so; outside of fit, where Lightning listens itself.
    signal.signal(signal.SIGTERM, ended)
    sys.stderr.flush()
    console = os.dup(2)
    try:
        return unless_stopped(main(job, config, str(run_dir)))
    except (UserError, RankFailed):
        raise
    except Exception as error:
        ranks = machine.ranks_around()
        rank = ranks.rank if ranks else 0
        trace = "".join(traceback.format_exception(error)).strip()
        where = f"rank {rank} failed (its log: {_log_file(run_dir, rank)})"
        raise RankFailed(f"{where}\n{trace}") from None
    finally:
        sys.stderr.flush()
        os.dup2(console, 2)
        os.close(console)


def failure(
    error: ChildFailedError | SignalException | RendezvousError, run_dir: Path
) -> UserError | RankFailed:
    """The exception to raise in the parent: for the rank that failed first, or what ended it."""
    if isinstance(error, SignalException):
        return RankFailed(f"stopped by {error.sigval.name}", 128 + error.sigval.value)
    if isinstance(error, RendezvousError):
        return RankFailed(f"the nodes did not meet again: {error!r}", lost_contact=True)
    rank, first = error.get_first_failure()
    message = first.error_file_data.get("message", "")
    details = message if isinstance(message, dict) else {}
    said = str(details.get("message", ""))
    if refusal := re.match(r"UserError: (.*)", said, re.DOTALL):
        return UserError(refusal[1])
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip()
    how = f"was ended by signal {first.signal_name()}" if first.exitcode < 0 else "failed"
    where = f"rank {rank} {how} (its log: {_log_file(run_dir, rank)})"
    return RankFailed(f"{where}\n{trace}" if trace else where, lost_contact=_lost_contact(said))


def _lost_contact(said: str) -> bool:
    """Whether an error only says that another rank is gone: PyTorch's DistErrors, or gloo's."""
    return re.match(r"Dist\w*Error: ", said) is not None or "gloo" in said


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
