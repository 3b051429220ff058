"""The agent of this node: torchelastic starts the node's ranks from a warm forkserver.

The server has imported all packages once, and forks a rank in milliseconds. The agent's process is
never a rank itself. Ranks on several nodes are started by torchrun or srun.
Source: https://docs.pytorch.org/docs/stable/elastic/agent.html
"""

import logging
import os
import re
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..errors import UserError
from ..machine import SIGNALS, is_alive, unchanged_environment
from . import worker
from .addresses import HOST, listening_store
from .context import STOPPING, RankFailed, unless_stopped
from .process import log_file

# torchelastic of torch 2.11 does not have this option, and waits for 30 seconds.
CAN_SHUT_DOWN_SOON = "shutdown_timeout" in LaunchConfig.__dataclass_fields__
SHUT_DOWN: dict[str, Any] = {"shutdown_timeout": 5} if CAN_SHUT_DOWN_SOON else {}
REPORTS = re.compile(
    r"torch\.(distributed\.(elastic|launcher)|multiprocessing)|torchelastic-events-null"
)


class OneNode(StaticTCPRendezvous):
    """A rendezvous for a single node: a store in this process, new for every attempt.

    torchelastic's own rendezvous negotiates with nodes that come and go. That took a third of the
    time that a later job of a sweep needs besides its training.
    https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        super().__init__(HOST, 0, 0, 1, parameters.run_id, 0)

    def next_rendezvous(self) -> RendezvousInfo:
        store = listening_store(HOST)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(HOST, store.port))

    def get_backend(self) -> str:
        return "one_node"


rendezvous_handler_registry.register("one_node", OneNode)


def start_ranks(
    work: worker.Work | str,
    arguments: tuple[Any, ...],
    options: worker.RankOptions,
    *,
    processes: int,
    max_restarts: int = 0,
) -> Any:
    """Start the ranks of this node, wait until they end, and return the result of rank 0.

    After the failure of one all of them are restarted, `max_restarts` times.

    Raises:
        RankFailed: If a rank failed; names the rank and holds its traceback.
        UserError: If a rank raised one.
    """
    # Failures are reported once, below. Child loggers have levels of their own.
    for name in filter(REPORTS.match, [*logging.root.manager.loggerDict]):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.stdout.flush()
    with (
        unchanged_environment(("TORCHELASTIC_SIGNALS_TO_HANDLE",)),
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
    ):
        shared = Path(folder)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="one_node",
            local_addr=HOST,
            max_restarts=max_restarts,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(shared / "errors")),
            # The other signals are passed on to the ranks.
            signals_to_handle="SIGHUP,SIGQUIT",
            **SHUT_DOWN,
        )
        context = options.context and options.context.for_ranks()
        rank = replace(options, context=context, shared=shared)
        (listening := shared / worker.LISTENING).mkdir()
        try:
            with passing_on(listening, processes) as received:
                results = elastic_launch(config, worker.main)(work, arguments, rank)
        except ChildFailedError as error:
            raise _failure_of(error, options.logs) from None
        except SignalException as error:
            raise RankFailed(f"stopped by {error.sigval.name}", 128 + error.sigval.value) from None
        except (RendezvousError, DistError) as error:
            why = f"{type(error).__name__}: {error}"
            raise RankFailed(f"the ranks could not be started: {why}") from None
    return unless_stopped(results[0], received)


@contextmanager
def passing_on(ranks: Path, processes: int) -> Iterator[list[int]]:
    """Pass signals on to the ranks that this process has started; yields those received so far.

    The folder `ranks` has a file per rank that handles signals, named by its PID. A signal while
    not all of them do, and a second Ctrl-C, are raised as a SignalException.
    """
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        pids = list(filter(is_alive, [int(path.name) for path in ranks.glob("[0-9]*")]))
        is_second_ctrl_c = number == signal.SIGINT and number in received
        received.append(number)
        # The signal may have reached the ranks first: they save, and some may have ended.
        if (ranks / STOPPING).exists() and not is_second_ctrl_c:
            return
        if is_second_ctrl_c or len(pids) < processes:
            raise SignalException("asked to stop", signal.Signals(number))
        for pid in pids:
            # Not SIGINT: the terminal has sent it to the ranks as well, and a second one would
            # stop them at once.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1 if number == signal.SIGINT else number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failure_of(error: ChildFailedError, logs: Path | None) -> UserError | RankFailed:
    """The failure of the rank that failed first."""
    rank, first = error.get_first_failure()
    message = first.error_file_data.get("message", "")
    details = message if isinstance(message, dict) else {}
    if refusal := re.match(r"UserError: (.*)", str(details.get("message", "")), re.DOTALL):
        return UserError(refusal[1])
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip()
    # Only torch's own frame is left above the project's.
    trace = re.sub(r'  File ".*torch.distributed.elastic.*\n(?:    .*\n)+', "", trace, count=1)
    how = f"was ended by signal {first.signal_name()}" if first.exitcode < 0 else "failed"
    if -first.exitcode == signal.SIGABRT:  # as PyTorch ends ranks on a CPU, without an exception
        how += ", perhaps because ranks called different layers (such as experts without samples),"
        how += " or one of them alone saved a checkpoint"
    where = f"rank {rank} {how}" + (f" (its log: {log_file(logs, rank)})" if logs else "")
    return RankFailed(f"{where}\n{trace}" if trace else where)
