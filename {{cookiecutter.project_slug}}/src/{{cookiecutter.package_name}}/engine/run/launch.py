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
import re
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from . import machine, meeting

Metrics = dict[str, float]

PRELOADED = (
    f"{__package__}.server",
    "hydra",
    "lightning.pytorch",
    "torchvision",
    "torch.distributed.pipelining",
    f"{__package__}.fit",
)
SECONDS_TO_SHUT_DOWN = 5
# What Lightning leaves in the environment of the process that trains: of the seed, and of the one
# rank of a strategy that could have several.
LIGHTNING_VARIABLES = (
    "PL_GLOBAL_SEED",
    "PL_SEED_WORKERS",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
# What is set in this process's environment while torchelastic runs.
AGENT_VARIABLES = ("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")


class RankFailed(Exception):
    """A rank ended with an error, or was ended.

    Attributes:
        status: The exit status that the command should end with.
        lost_contact: Whether the rank only noticed that another was gone.
        cause: The error itself, of a message with a traceback; else the first line.
    """

    def __init__(self, message: str, status: int = 1, lost_contact: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.lost_contact = lost_contact
        errors = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", message, re.MULTILINE)
        self.cause = errors[-1] if errors else message.strip().partition("\n")[0]


def warm_up() -> None:
    """Start the forkserver, so that its imports overlap with what the parent does meanwhile.

    It only imports: a started thread pool or a touched GPU would not survive the fork.
    """
    # A search has imported it, and its ranks will.
    search = [name for name in ("optuna",) if name in sys.modules]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *search])
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


@contextmanager
def unchanged_environment(names: Sequence[str]) -> Iterator[None]:
    """Variables are afterwards as they were before, for the next job of a sweep."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _inline(job: str, config: dict[str, Any], run_dir: Path) -> Metrics:
    from .rank import log_to_file, no_group_left, unless_stopped

    work: Callable[..., Metrics] = import_module(f"{__package__}.{job}").work
    with unchanged_environment(LIGHTNING_VARIABLES), no_group_left(), log_to_file(run_dir, rank=0):
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
    sys.stdout.flush()
    others = meeting.current
    with (
        unchanged_environment(AGENT_VARIABLES),
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
    ):
        if others:
            # Otherwise all attempts share a store, and restarted ranks read addresses of dead ones.
            own_stores = config["launch"]["max_restarts"] > 0
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = str(int(own_stores))
        error_files, listening = Path(folder, "errors"), Path(folder, "listening")
        listening.mkdir()
        agent = LaunchConfig(
            nproc_per_node=processes,
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
            if others:
                nodes.leave(others)
    for metrics in results.values():
        # Rank 0 may be on another node, but all of them were stopped.
        rank.unless_stopped(metrics or {}, received)
    return dict(results.get(0, {}))


def _place(config: dict[str, Any], others: meeting.Meeting | None) -> dict[str, Any]:
    """Where the agents of all nodes meet, as arguments of LaunchConfig."""
    if others is None:
        from . import one_node

        return {
            "min_nodes": 1,
            "max_nodes": 1,
            "run_id": uuid.uuid4().hex,
            "rdzv_backend": one_node.BACKEND,
            "local_addr": one_node.HOST,
        }
    return {
        "min_nodes": len(others.members),
        "max_nodes": len(others.members),
        "run_id": "run",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": others.endpoint,
        "local_addr": others.members[others.index].address,
        "rdzv_configs": {
            "is_host": others.hosts,
            "join_timeout": config["launch"]["timeout_seconds"],
        },
    }
