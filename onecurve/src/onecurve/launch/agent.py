"""The agent of this node: torchelastic starts its ranks from a warm forkserver.

A server process has imported the stack once and forks a rank in milliseconds. This process is never
a rank itself. On several nodes there is an agent on each, as torchrun is one on each.
Source: https://docs.pytorch.org/docs/stable/elastic/agent.html
"""

import logging
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..run.context import RunContext
from ..run.outcome import unless_stopped
from . import one_node, signals, worker
from .environment import unchanged_environment
from .failure import failure_of
from .logs import Verbose
from .nodes import Nodes

SECONDS_TO_SHUT_DOWN = 5
# What is set in this process's environment while torchelastic runs. An agent that shares its store
# with ranks waits for ever for a node that comes to others that have met before (torch 2.15).
AGENT_VARIABLES = ("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")


def start_ranks(
    work: worker.Work | str,
    arguments: tuple[Any, ...],
    *,
    processes: int,
    context: RunContext | None = None,
    logs: Path | None = None,
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
        context: The run's, which `work` is given as well; None for a function of a script.
        logs: The folder for what ranks log, and for what all but the first print; None leaves all
            of it on the console.
        max_restarts: How often all ranks are started again after one of them failed.
        timeout_seconds: How long the agents of several nodes wait for each other.
        debug_rank: The rank that `breakpoint()` stops.
        verbose: Who logs in detail, see `logs.Verbose`.

    Returns:
        What `work` returned on rank 0; None where that is on another node.

    Raises:
        RankFailed: If a rank failed; names the rank and holds its traceback.
        UserError: If a rank raised one.
    """

    def stop_at_once(number: int, _frame: object) -> None:
        raise SignalException("asked to stop", signal.Signals(number))

    # What goes wrong is said once, below.
    _silence(
        "torch.distributed.elastic",
        "torch.distributed.launcher",
        "torch.multiprocessing",
        "torchelastic-events-null",
    )
    sys.stdout.flush()
    nodes = context.members if context and isinstance(context.members, Nodes) else None
    with (
        unchanged_environment(AGENT_VARIABLES, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
    ):
        shared = Path(folder)
        where = nodes.launch_options(timeout_seconds) if nodes else one_node.launch_options()
        agent = LaunchConfig(
            **{"run_id": uuid.uuid4().hex, **where},
            nproc_per_node=processes,
            max_restarts=max_restarts,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(shared / "errors")),
            shutdown_timeout=SECONDS_TO_SHUT_DOWN,
            # The others are passed on to the ranks.
            signals_to_handle="SIGHUP,SIGQUIT",
        )
        rank = worker.Rank(
            context=context.for_ranks() if context else None,
            logs=logs,
            shared=shared,
            has_nodes=nodes is not None,
            debug_rank=debug_rank,
            verbose=verbose,
        )
        (shared / worker.LISTENING).mkdir()
        try:
            with signals.passing_on(shared / worker.LISTENING, processes, stop_at_once) as received:
                results = elastic_launch(agent, worker.main)(work, arguments, rank)
        except (ChildFailedError, SignalException, RendezvousError, DistError) as error:
            raise failure_of(error, logs, nodes) from None
    for result in results.values():
        # Rank 0 may be on another node, but all of them were stopped.
        unless_stopped(result, received)
    return results.get(0)


def _silence(*packages: str) -> None:
    """Let the loggers of packages say nothing; some of torchelastic's have a level of their own."""
    for name in [*packages, *logging.root.manager.loggerDict]:
        if name.startswith(packages):
            logging.getLogger(name).setLevel(logging.CRITICAL)
