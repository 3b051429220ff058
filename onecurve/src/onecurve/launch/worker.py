"""One rank of a run: what happens in its process around the actual work."""

import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from .. import machine
from ..errors import UserError, user_error_behind
from ..run.context import RunContext
from ..run.outcome import Metrics, RankFailed, is_stopped, unless_stopped
from ..surroundings import LIGHTNING_VARIABLES, Ranks, unchanged_environment
from . import addresses, debugging
from .logs import Verbose, log_file, log_to_file, print_lines_at_once, redirect_output
from .meeting import meet_ranks
from .store import HOST, listening_store

SECONDS_TO_BLAME_ANOTHER = 2
LISTENING = "listening"
"""In the folder that an agent shares with its ranks: the PIDs of those that listen to signals."""
# How torch and gloo are told where the store of one rank alone is, and what Lightning leaves.
VARIABLES_OF_ONE_RANK = (
    *LIGHTNING_VARIABLES,
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
    from ..compat import torchmetrics_without_scipy  # noqa: F401

    module, _, name = work.rpartition(".")
    function: Work = getattr(import_module(module), name)
    return function


@dataclass(frozen=True)
class RankOptions:
    """What whoever starts a rank passes to it.

    Attributes:
        context: The run's; None for a function of a script.
        logs: The folder for logs, as for `agent.start_ranks`.
        shared: The folder that the agent shares with its ranks; None where the agent is torchrun.
        has_nodes: Whether other nodes take part in the run, now or later.
        debug_rank: The rank that `breakpoint()` stops.
        verbose: Who logs in detail, see `logs.Verbose`.
    """

    context: RunContext | None = None
    logs: Path | None = None
    shared: Path | None = None
    has_nodes: bool = False
    debug_rank: int = 0
    verbose: Verbose = False


def main(work: Work | str, arguments: tuple[Any, ...], options: RankOptions) -> Any:
    """Entry point of a worker process that torchelastic started.

    Args:
        work: One rank's part, or its dotted name.
        arguments: What it is called with; the configuration of a run, before its context.
        options: All else.

    Returns:
        What `work` returned, on the first rank.
    """
    if options.shared:
        _end_with_the_agent()
    ranks = machine.ranks_around()
    assert ranks is not None, "whoever starts a rank tells it which one it is"
    rank, logs = ranks.rank, options.logs
    debugging.at_breakpoints(rank, options.debug_rank)
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
    with log_to_file(logs, rank, options.verbose) if logs else nullcontext():
        try:
            if options.context:
                context = options.context
                if options.shared:
                    context = replace(context, listening=options.shared / LISTENING)
                    context = _of_attempt(context, options, arguments[0], ranks)
                arguments = (*arguments, context)
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


def _of_attempt(
    context: RunContext, options: RankOptions, config: dict[str, Any], ranks: Ranks
) -> RunContext:
    """The context with what rank 0 decides that the ranks of this attempt resume from."""
    if not options.has_nodes and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        return context
    met = meet_ranks(ranks, config, context.run_dir)
    return replace(context, members=met.members, attempt=met.attempt)


def started_elsewhere(work: str, config: dict[str, Any], options: RankOptions) -> Metrics:
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
        done = main(work, (config,), options)
        metrics: Metrics | None = unless_stopped(done)
        return metrics or {}
    except (UserError, RankFailed):
        raise
    except Exception as error:
        ranks = machine.ranks_around()
        rank = ranks.rank if ranks else 0
        trace = "".join(traceback.format_exception(error)).strip()
        assert options.logs is not None
        where = f"rank {rank} failed (its log: {log_file(options.logs, rank)})"
        raise RankFailed(f"{where}\n{trace}") from None
    finally:
        sys.stderr.flush()
        os.dup2(console, 2)
        os.close(console)


@contextmanager
def only_rank() -> Iterator[None]:
    """This process is the one rank of a run, and leaves nothing that the next job could find.

    A strategy that could have several has a process group, too, and its store would else listen on
    every network of this machine.
    """
    mine = not distributed.is_initialized()
    store = listening_store(HOST)
    with unchanged_environment(VARIABLES_OF_ONE_RANK):
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


def lost_contact(said: str) -> bool:
    """Whether an error only says that another rank is gone: PyTorch's DistErrors, or gloo's."""
    return re.match(r"Dist\w*Error: ", said) is not None or "gloo" in said
