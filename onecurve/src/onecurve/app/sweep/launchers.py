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
from omegaconf import DictConfig, OmegaConf

from ... import machine
from ...errors import UserError
from ...launch import forkserver
from ...launch.context import RunContext
from ...launch.meeting import meet_ranks
from ...launch.process import QuickExit
from ..run.record import try_lock
from ..run.stored import overrides_of
from .directory import STOPPED

# Launchers: one job after another in this process, several processes of this machine at the same
# time, and a job of Slurm for each, queued by submitit.
SERIAL, JOBLIB, SLURM = "BasicLauncher", "JoblibLauncher", "SlurmLauncher"
LAUNCHERS = {SERIAL: "serial", JOBLIB: "joblib", SLURM: "slurm", "LocalLauncher": "local"}

T = TypeVar("T")


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
    validate_nodes(config, config.hydra)
    if launcher_of(config.hydra) != SLURM:
        return
    # A sweep is one job array, whose tasks all have the same shape.
    for word in overrides_of(config.hydra.overrides.task):
        key, _, value = word.partition("=")
        if key == "trainer.num_nodes" and not value.isdecimal() and value != "auto":
            raise UserError(
                f"{word}: all jobs of a sweep with sweep/launcher=slurm have the same number of "
                "nodes; give one number, such as trainer.num_nodes=2, and start a sweep for each"
            )
    if _nodes(config) > 1 and OmegaConf.select(config, "sweep.on_failure") == "retry":
        raise UserError(
            "sweep.on_failure=retry: the ranks of several nodes end with their job; use "
            "sweep.on_failure=continue, and run the same command again for the failed jobs"
        )


def validate_nodes(config: DictConfig, hydra: HydraConf | DictConfig) -> None:
    """Reject several nodes for a job that nobody would start on each of them."""
    if _nodes(config) > 1 and launcher_of(hydra) != SLURM:
        raise UserError(
            f"trainer.num_nodes={_nodes(config)}: a sweep (-m) runs on one node, unless "
            "sweep/launcher=slurm submits it; use trainer.num_nodes=1, or one command per run"
        )


def _nodes(config: DictConfig) -> int:
    nodes = OmegaConf.select(config, "trainer.num_nodes")
    return nodes if isinstance(nodes, int) else 1


def slurm_tasks(config: DictConfig) -> dict[str, int]:
    """Keys of the launcher for jobs on several nodes: one task for each rank.

    On one node a job is one task, which starts its ranks itself.
    """
    nodes = _nodes(config)
    if nodes == 1 or launcher_of(config.hydra) != SLURM:
        return {}
    devices = config.trainer.devices
    # The GPUs of the compute nodes; the machine of this command may have others.
    per_node = config.hydra.launcher.gpus_per_node or 1
    if devices not in ("auto", -1, "-1"):
        per_node = machine.local_devices(config.trainer, one_device=False)
    return {"nodes": nodes, "tasks_per_node": per_node}


def meet(config: DictConfig, hydra: HydraConf) -> RunContext:
    """Let the ranks of a job meet, if Slurm started several; any other job has one process."""
    run_dir, ranks = Path(hydra.runtime.output_dir), machine.ranks_around()
    if ranks is None or launcher_of(hydra) != SLURM:
        return RunContext(run_dir)
    return meet_ranks(ranks, config, run_dir)


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
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, share(cores, place, parallel))
    else:
        os.environ["OMP_NUM_THREADS"] = str(max(1, machine.count_cores() // parallel))
    return lock


def share(things: list[T], place: int, parallel: int) -> list[T]:
    """Consecutive things for one of `parallel` processes: equally many for each, at least one.

    A remainder stays unused; with fewer things than processes some processes share one.
    """
    each = len(things) // parallel
    if each == 0:
        return [things[place % len(things)]]
    return things[place * each : (place + 1) * each]


def _free_place(folder: Path, parallel: int) -> tuple[int, FileLock]:
    while True:
        for place in range(parallel):
            if lock := try_lock(folder / str(place)):
                return place, lock
        # A process that is about to end still holds its place.
        time.sleep(0.1)


class Interrupt:
    """Lets jobs that run side by side save before Ctrl-C ends the sweep.

    A terminal sends SIGINT to every process. Unhandled, it would make this process, which started
    the others, kill them before they have saved. A second Ctrl-C does so.
    """

    def __init__(self, sweep_dir: Path) -> None:
        self.requested = False
        self._sweep_dir = sweep_dir
        self._previous: Any = signal.signal(signal.SIGINT, self._request)

    def _request(self, number: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        (self._sweep_dir / STOPPED).touch()

    def restore(self) -> None:
        signal.signal(signal.SIGINT, self._previous)


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
