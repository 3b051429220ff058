"""The agent of this node: torchelastic starts its ranks from a warm forkserver.

A server process has imported the stack once and forks a rank in milliseconds. This process is never
a rank itself. On several nodes there is an agent on each, and they meet at `launch.rendezvous`.
Source: https://docs.pytorch.org/docs/stable/elastic/agent.html
"""

import logging
import signal
import sys
import tempfile
import uuid
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..run.outcome import unless_stopped
from . import one_node, rendezvous, signals, worker
from .environment import unchanged_environment
from .failure import failure_of
from .listening import HOST
from .logs import Verbose

SECONDS_TO_SHUT_DOWN = 5
# What is set in this process's environment while torchelastic runs.
AGENT_VARIABLES = ("TORCHELASTIC_SIGNALS_TO_HANDLE",)


def start_ranks(
    work: worker.Work | str,
    arguments: tuple[Any, ...],
    *,
    processes: int,
    logs: Path | None,
    max_restarts: int = 0,
    timeout_seconds: float = 600,
    debug_rank: int = 0,
    verbose: Verbose = False,
) -> Any:
    """Start the ranks of this node and wait for their end.

    Args:
        work: One rank's part, or its dotted name.
        arguments: What it is called with.
        processes: Ranks on this node.
        logs: The folder for what ranks log, and for what all but the first print; None leaves all
            of it on the console.
        max_restarts: How often all ranks are started again after one of them failed.
        timeout_seconds: How long the agents of several nodes wait for each other.
        debug_rank: The rank that `breakpoint()` stops.
        verbose: Who logs in detail, see `logs.Verbose`.

    Returns:
        What `work` returned on rank 0; None where that is on another node.

    Raises:
        RankFailed, UserError: As `launch.launch`.
    """

    def stop_at_once(number: int, _frame: object) -> None:
        raise SignalException("asked to stop", signal.Signals(number))

    # What goes wrong is said once, below.
    _silence("torch.distributed.elastic", "torch.multiprocessing", "torchelastic-events-null")
    sys.stdout.flush()
    others = rendezvous.current
    nodes = len(others.members) if others else 1
    with (
        unchanged_environment(AGENT_VARIABLES),
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
    ):
        shared = Path(folder)
        agent = LaunchConfig(
            nproc_per_node=processes,
            max_restarts=max_restarts,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(shared / "errors")),
            shutdown_timeout=SECONDS_TO_SHUT_DOWN,
            # The others are passed on to the ranks.
            signals_to_handle="SIGHUP,SIGQUIT",
            min_nodes=nodes,
            max_nodes=nodes,
            run_id=uuid.uuid4().hex,
            rdzv_backend=others.backend() if others else one_node.BACKEND,
            rdzv_configs={"folder": shared, "run_dir": logs, "timeout_seconds": timeout_seconds},
            local_addr=others.members[others.index].address if others else HOST,
        )
        try:
            with (
                _hearing_of(others),
                signals.passing_on(shared / "listening", processes, stop_at_once) as received,
            ):
                results = elastic_launch(agent, worker.main)(
                    work, arguments, logs, shared, debug_rank, verbose
                )
        except (ChildFailedError, SignalException, RendezvousError) as error:
            failure = failure_of(error, logs)
            raise others.agree_on(failure) if others else failure from None
        finally:
            if others:
                others.leave()
    for result in results.values():
        # Rank 0 may be on another node, but all of them were stopped.
        unless_stopped(result, received)
    return results.get(0)


def _silence(*packages: str) -> None:
    """Let the loggers of packages say nothing; some of torchelastic's have a level of their own."""
    for name in [*packages, *logging.root.manager.loggerDict]:
        if name.startswith(packages):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _hearing_of(others: rendezvous.Rendezvous | None) -> AbstractContextManager[None]:
    return others.watching() if others else nullcontext()
