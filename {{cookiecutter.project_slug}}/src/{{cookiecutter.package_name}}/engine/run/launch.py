"""How many processes a run has, and who starts them.

- One process is needed: the work is done inline.
- Otherwise torchelastic starts the ranks of this node, for single runs and sweep jobs alike, from a
  warm forkserver: a server process that has imported the stack once and forks a worker in
  milliseconds. This process is the agent and never a rank.

torch is imported only once ranks are to be started.
"""

import logging
import multiprocessing
import os
import sys
import tempfile
import uuid
from collections.abc import Callable
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

Metrics = dict[str, float]

PRELOADED = ("hydra", "lightning.pytorch", "torchvision", f"{__package__}.fit")
SECONDS_TO_SHUT_DOWN = 5


class RankFailed(Exception):
    """A rank ended with an error, or was ended.

    Attributes:
        status: The exit status that the command should end with.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


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
        What `work` returned on rank 0.

    Raises:
        RankFailed: If a rank failed; names the rank and holds its traceback.
        UserError: If a rank raised one.
    """
    if processes == 1:
        return _inline(job, config, run_dir)
    return _elastic(job, config, run_dir, processes)


def _inline(job: str, config: dict[str, Any], run_dir: Path) -> Metrics:
    from .rank import log_to_file

    work: Callable[..., Metrics] = import_module(f"{__package__}.{job}").work
    with log_to_file(run_dir, rank=0):
        return work(config, run_dir)


def _elastic(job: str, config: dict[str, Any], run_dir: Path, processes: int) -> Metrics:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from . import rank

    # What goes wrong is said once, below.
    for name in ("torch.distributed.elastic", "torch.multiprocessing", "torchelastic-events-null"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    handled_before = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="ranks-") as error_files:
        agent = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=config["launch"]["max_restarts"],
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=error_files),
            shutdown_timeout=SECONDS_TO_SHUT_DOWN,
        )
        try:
            results = elastic_launch(agent, rank.main)(job, config, str(run_dir))
        except ChildFailedError as error:
            raise rank.failure(error, run_dir) from None
        except SignalException as error:
            raise RankFailed(f"stopped by {error.sigval.name}", 128 + error.sigval.value) from None
        finally:
            if handled_before is None:
                os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
    return dict(results[0])
