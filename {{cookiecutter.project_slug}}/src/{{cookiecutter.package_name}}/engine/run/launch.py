"""How many processes a run has, and who starts them.

- torchrun or srun started the ranks: this process is one, and the work is done inline.
- One process is needed: the work is done inline.
- Otherwise torchelastic starts the ranks of this node, for single runs and sweep jobs alike, from a
  warm forkserver: a server process that has imported the stack once and forks a worker in
  milliseconds. This process is the agent and never a rank. On several nodes there is an agent on
  each, and they meet at `launch.rendezvous`.

torch is imported only once ranks are to be started.
"""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from . import machine, meeting

Metrics = dict[str, float]

PRELOADED = (
    "hydra",
    "lightning.pytorch",
    "torchvision",
    "torch.distributed.pipelining",
    f"{__package__}.fit",
)
SECONDS_TO_SHUT_DOWN = 5
# What is set in this process's environment while torchelastic runs.
AGENT_VARIABLES = ("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")


class RankFailed(Exception):
    """A rank ended with an error, or was ended.

    Attributes:
        status: The exit status that the command should end with.
        lost_contact: Whether the rank only noticed that another was gone.
    """

    def __init__(self, message: str, status: int = 1, lost_contact: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.lost_contact = lost_contact


def warm_up() -> None:
    """Start the forkserver, so that its imports overlap with what the parent does meanwhile.

    It only imports: a started thread pool or a touched GPU would not survive the fork.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()


def launch(job: str, config: dict[str, Any], run_dir: Path, processes: int) -> Metrics:
    """Do a job's work in as many processes as it needs.

    Args:
        job: Name of the module beside this one whose `work(config, run_dir)` is one rank's part.
        config: The resolved configuration as plain containers.
        run_dir: Where the run leaves its files.
        processes: Ranks on this node.

    Returns:
        What `work` returned on rank 0; nothing where rank 0 is on another node.

    Raises:
        RankFailed: If a rank failed; names the rank and holds its traceback.
        UserError: If a rank raised one.
    """
    if machine.ranks_around() is not None:
        from . import rank

        return rank.started_elsewhere(job, config, run_dir)
    if processes == 1 and meeting.current is None:
        return _inline(job, config, run_dir)
    return _elastic(job, config, run_dir, processes)


def _inline(job: str, config: dict[str, Any], run_dir: Path) -> Metrics:
    from .rank import log_to_file, unless_stopped

    work: Callable[..., Metrics] = import_module(f"{__package__}.{job}").work
    with log_to_file(run_dir, rank=0):
        metrics = work(config, run_dir)
    return unless_stopped(metrics)


def _elastic(job: str, config: dict[str, Any], run_dir: Path, processes: int) -> Metrics:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from . import nodes, rank, stopping

    def stop_at_once(number: int, _frame: object) -> None:
        raise SignalException("asked to stop", signal.Signals(number))

    # What goes wrong is said once, below.
    for name in ("torch.distributed.elastic", "torch.multiprocessing", "torchelastic-events-null"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    before = {name: os.environ.get(name) for name in AGENT_VARIABLES}
    # Otherwise all attempts share one store, and a restarted rank reads addresses of dead ones.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = str(
        int(config["launch"]["max_restarts"] > 0)
    )
    sys.stdout.flush()
    others = meeting.current
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        error_files, listening = Path(folder, "errors"), Path(folder, "listening")
        listening.mkdir()
        agent = LaunchConfig(
            nproc_per_node=processes,
            rdzv_backend="c10d",
            max_restarts=config["launch"]["max_restarts"],
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(error_files)),
            shutdown_timeout=SECONDS_TO_SHUT_DOWN,
            # The others are passed on to the ranks.
            signals_to_handle="SIGHUP,SIGQUIT",
            **_place(config, others),
        )
        try:
            with (
                nodes.watching(others) if others else nullcontext(),
                stopping.passing_on(listening, processes, stop_at_once) as received,
            ):
                entry = elastic_launch(agent, rank.main)
                results = entry(job, config, str(run_dir), str(listening))
        except (ChildFailedError, SignalException, RendezvousError) as error:
            failure = rank.failure(error, run_dir)
            raise nodes.agree(others, failure) if others else failure from None
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            if others:
                nodes.leave(others)
    for metrics in results.values():
        # Rank 0 may be on another node, but all of them were stopped.
        rank.unless_stopped(metrics or {}, received)
    return dict(results.get(0, {}))


def _place(config: dict[str, Any], others: meeting.Meeting | None) -> dict[str, Any]:
    """Where the agents of all nodes meet, as arguments of LaunchConfig."""
    if others is None:
        return {
            "min_nodes": 1,
            "max_nodes": 1,
            "run_id": uuid.uuid4().hex,
            "rdzv_endpoint": "localhost:0",
            "local_addr": "localhost",
        }
    return {
        "min_nodes": len(others.members),
        "max_nodes": len(others.members),
        "run_id": "run",
        "rdzv_endpoint": others.endpoint,
        "local_addr": others.members[others.index].address,
        "rdzv_configs": {
            "is_host": others.hosts,
            "join_timeout": config["launch"]["timeout_seconds"],
        },
    }
