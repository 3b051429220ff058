"""How the jobs of a sweep are started: one after another, side by side by joblib, or by Slurm."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from hydra.conf import HydraConf
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from ... import machine
from ...errors import UserError
from ...launch import forkserver
from ...launch.process import QuickExit
from ..run.record import try_lock
from .directory import STOPPED

# One job after another in this process, and several processes of this machine at the same time.
SERIAL, JOBLIB = "BasicLauncher", "JoblibLauncher"
CTRL_C = "stopped by Ctrl-C"  # what the file STOPPED says then

T = TypeVar("T")


class DropConfigurations(Callback):
    """Drops a job's two configurations, half a megabyte that Hydra would keep for the sweep."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """A job ended, and Hydra has written its configuration."""
        job_return.cfg = job_return.hydra_cfg = None


def launcher_of(hydra: HydraConf | DictConfig) -> str:
    """Which class of Hydra's plugins starts the jobs."""
    return str(hydra.launcher._target_).rpartition(".")[2]


def validate_launcher(config: DictConfig) -> None:
    """Reject a sweep whose launcher cannot start its jobs."""
    ranks = machine.ranks_around()
    if ranks is not None and ranks.world_size > 1:
        raise UserError(
            f"-m: {ranks.starter} has started {ranks.world_size} ranks, but a sweep starts the "
            f"ranks of each job itself; run the command once, without {ranks.starter}"
        )
    nodes = machine.node_around().nodes or 1
    if ranks is None and nodes > 1:
        raise UserError(
            f"-m: PET_NNODES={nodes}: each of these nodes would run the whole sweep; use one node, "
            "or one command per run"
        )
    reject_several_nodes(config)
    parallel = OmegaConf.select(config, "sweep.parallel")
    if parallel != 1 and launcher_of(config.hydra) == SERIAL:
        raise UserError(
            f"sweep.parallel={parallel}: jobs run one after the other here; add "
            "sweep/launcher=joblib, or use sweep.parallel=1"
        )


def reject_several_nodes(config: DictConfig) -> None:
    """A job runs in this process, or in one that a launcher starts, and starts ranks beside it."""
    for key in ("trainer.num_nodes", "hydra.launcher.nodes", "hydra.launcher.tasks_per_node"):
        count = OmegaConf.select(config, key)
        if isinstance(count, int) and count > 1:
            raise UserError(
                f"{key}={count}: each job of a sweep (-m) is one task on one node, which starts "
                f"its ranks; use {key}=1, or one command per run"
            )


@cache
def take_share(sweep_dir: Path, parallel: int) -> FileLock:
    """Limit this process to one of `parallel` equal shares of the machine's GPUs or cores.

    Called before torch is imported, in a process of joblib. It runs one job after another, all of
    them in its first share: `cache` keeps the lock until the process ends.
    """
    # Python's own way to exit would let C++ libraries print what they think has leaked.
    QuickExit(status=0)
    # The processes that this one starts do not know loky, joblib's own start method.
    if forkserver.is_here():
        multiprocessing.set_start_method("forkserver", force=True)
    place, lock = _free_place(sweep_dir / ".places", parallel)
    if count := machine.count_gpus():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share(visible.split(","), place, parallel))
        machine.count_gpus.cache_clear()
    # Elsewhere OMP_NUM_THREADS is the limit, by which joblib divides the cores among its processes.
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, share(cores, place, parallel))
    return lock


def share(things: list[T], place: int, parallel: int) -> list[T]:
    """Consecutive things for one of `parallel` processes: equally many for each, at least one.

    A remainder stays unused; with fewer things than processes some processes share one.
    """
    each = max(1, len(things) // parallel)
    first = place * each % len(things)
    return things[first : first + each]


def _free_place(folder: Path, parallel: int) -> tuple[int, FileLock]:
    while True:
        for place in range(parallel):
            if lock := try_lock(folder / str(place)):
                return place, lock
        # A process that is about to end still holds its place.
        time.sleep(0.1)


def let_jobs_save(sweep_dir: Path) -> None:
    """Let jobs that run side by side save before Ctrl-C ends the sweep.

    A terminal sends SIGINT to every process. Unhandled, it would make this process, which started
    the others, kill them before they have saved. A second Ctrl-C does so.
    """

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        (sweep_dir / STOPPED).write_text(CTRL_C)

    signal.signal(signal.SIGINT, stop)


@contextmanager
def interrupt_ends_job() -> Iterator[None]:
    """In a process of joblib: Ctrl-C ends the job under way, but not the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        # The job has saved. If this process ended, joblib would kill the others.
        pass
    finally:
        # Not SIG_IGN, which the ranks of the next job would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)
