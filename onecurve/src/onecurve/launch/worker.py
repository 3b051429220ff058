"""One rank of a run: what happens in its process around the actual work."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from .. import machine
from ..errors import UserError, user_error_behind
from ..run import restart, stop_signals
from ..run.outcome import Metrics, RankFailed, is_stopped, unless_stopped
from . import addresses, attempts, debugging
from .environment import unchanged_environment
from .failure import lost_contact
from .listening import HOST, listening_store
from .logs import Verbose, log_file, log_to_file, print_lines_at_once, redirect_output

SECONDS_TO_BLAME_ANOTHER = 2
# How torch and gloo are told where the store of one rank alone is.
STORE_VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
    "GLOO_SOCKET_IFNAME",
)

Work = Callable[..., Any]


def resolved(work: Work | str) -> Work:
    """The function of a dotted name, such as "onecurve.run.fit.work"."""
    if not isinstance(work, str):
        return work
    # Before the work imports Lightning.
    from .. import torchmetrics_first  # noqa: F401

    module, _, name = work.rpartition(".")
    function: Work = getattr(import_module(module), name)
    return function


def main(
    work: Work | str,
    arguments: tuple[Any, ...],
    logs: Path | None,
    shared: Path | None = None,
    debug_rank: int = 0,
    verbose: Verbose = False,
) -> Any:
    """Entry point of a worker process that torchelastic started.

    Args:
        work: One rank's part, or its dotted name.
        arguments: What it is called with.
        logs: The folder for logs, as for `agent.start_ranks`.
        shared: The folder that the agent shares with its ranks, see `attempts`.
        debug_rank: The rank that `breakpoint()` stops.
        verbose: Who logs in detail, see `logs.Verbose`.

    Returns:
        What `work` returned, on the first rank.
    """
    if shared:
        stop_signals.listening = shared / "listening"
        restart.current = attempts.told(shared)
        # The agents of several nodes count each for itself.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restart.current.number)
        _end_with_the_agent()
    ranks = machine.ranks_around()
    assert ranks is not None, "whoever starts a rank tells it which one it is"
    rank = ranks.rank
    debugging.at_breakpoints(rank, debug_rank)
    addresses.stay_on_this_machine(ranks)
    # Where somebody has set it, torch has read it.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, machine.count_cores() // ranks.on_this_node))
    print_lines_at_once()
    if logs and rank == 0:
        logging.basicConfig(format="%(message)s")
        logging.getLogger().handlers[0].setLevel(logging.WARNING)
    elif logs:
        redirect_output(log_file(logs, rank))
    # Imported before logging is set up: Lightning adds handlers of its own.
    do = resolved(work)
    with log_to_file(logs, rank, verbose) if logs else nullcontext():
        try:
            result = do(*arguments)
        except Exception as error:
            if refusal := user_error_behind(error):
                # The parent recognises it by this class's name, not by that of a subclass.
                raise UserError(str(refusal)) from None
            if lost_contact(f"{type(error).__name__}: {error}"):
                # This rank lost contact, and is not the cause: let the agent see the other first.
                time.sleep(SECONDS_TO_BLAME_ANOTHER)
            raise
    # Only rank 0's are asked for, and a rank that waits for a queue to be read holds up the others.
    return result if rank == 0 or is_stopped(result) else None


def started_elsewhere(
    work: str, config: dict[str, Any], run_dir: Path, verbose: Verbose = False
) -> Metrics:
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
        debug_rank = config["launch"].get("debug_rank", 0)
        done = main(work, (config, run_dir), run_dir, debug_rank=debug_rank, verbose=verbose)
        metrics: Metrics | None = unless_stopped(done)
        return metrics or {}
    except (UserError, RankFailed):
        raise
    except Exception as error:
        ranks = machine.ranks_around()
        rank = ranks.rank if ranks else 0
        trace = "".join(traceback.format_exception(error)).strip()
        where = f"rank {rank} failed (its log: {log_file(run_dir, rank)})"
        raise RankFailed(f"{where}\n{trace}") from None
    finally:
        sys.stderr.flush()
        os.dup2(console, 2)
        os.close(console)


@contextmanager
def no_group_left() -> Iterator[None]:
    """The one rank of a strategy has a process group too, which the next job must not find.

    It has a store, which would else listen on every network of this machine.
    """
    mine = not distributed.is_initialized()
    store = listening_store(HOST)
    with unchanged_environment(STORE_VARIABLES):
        os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(store.port)}
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        addresses.name_interface(HOST)
        try:
            yield
        finally:
            if mine and distributed.is_initialized():
                distributed.destroy_process_group()


def _end_with_the_agent() -> None:
    """A rank whose agent was killed would train on, in a run that is gone on with meanwhile."""
    agent = multiprocessing.parent_process()
    assert agent is not None

    def watch() -> None:
        agent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="agent", daemon=True).start()
