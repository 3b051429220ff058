"""This process and its machine, without torch: the run's ranks and nodes, and its devices.

torchrun and srun start ranks, of which this process is one (`ranks_around`). Kubeflow starts a pod
for each node, in which this process becomes torchrun (`node_around`). Sources:
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
https://www.kubeflow.org/docs/components/trainer/
"""

import os
import platform
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .errors import UserError

# Steps that srun did not start, a batch script or salloc's shell, have numbers from here on.
FIRST_STEP_WITHOUT_SRUN = 0xFFFFFFF0
# With this TORCHELASTIC_RUN_ID Lightning takes ranks of srun for torchrun's: its own support of
# Slurm ignores a job that is called "bash", and requeues jobs.
OF_SRUN = "srun"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"

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


class Ranks(NamedTuple):
    """The rank of this process, which torchrun or srun started."""

    rank: int
    local_rank: int
    world_size: int
    on_this_node: int
    starter: str

    @property
    def nodes(self) -> int:
        """The number of nodes; each has the same number of ranks."""
        return max(1, self.world_size // self.on_this_node)


class Node(NamedTuple):
    """The node of a pod, whose ranks have not been started yet.

    The number of nodes, and of the ranks of this one, as far as they are set.
    """

    nodes: int | None = None
    devices: int | None = None


def ranks_around() -> Ranks | None:
    """The rank of this process among those of torchrun or srun; None if it was started otherwise.

    Workers of torchelastic are ranks, too. A pod of a Kubeflow PyTorchJob is none: it has RANK but
    no LOCAL_RANK, and becomes torchrun.
    """
    # Lightning's import, a PyTorchJob's pod and the process group read these, also one alone.
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "WORLD_SIZE", "MASTER_PORT"):
        if name in os.environ:
            _number(name, least=1 if name == "WORLD_SIZE" else 0)
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
        world = _number("WORLD_SIZE", 1, least=1)
        here = _number("LOCAL_WORLD_SIZE", world, least=1)
        starter = "srun" if os.environ.get("TORCHELASTIC_RUN_ID") == OF_SRUN else "torchrun"
        return Ranks(_number("RANK"), _number("LOCAL_RANK"), world, here, starter)
    # A step may have fewer tasks than its job. A single task is not one of several ranks.
    counts = "SLURM_STEP_NUM_TASKS" if os.environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    if not _is_task_of_srun() or (world := _number(counts, 1, least=1)) == 1:
        return None
    rank, here = _number("SLURM_PROCID"), _tasks_here(world)
    return Ranks(rank, _number("SLURM_LOCALID", rank % here), world, here, "srun")


def is_first_rank() -> bool:
    """Whether this process is rank 0, or no rank of several."""
    ranks = ranks_around()
    return ranks is None or ranks.rank == 0


def _number(name: str, default: int | None = None, least: int = 0) -> int:
    """The number in an environment variable of torchrun or srun."""
    written = os.environ.get(name, "" if default is None else str(default))
    if not written.isdecimal() or int(written) < least:
        raise UserError(
            f"{name}={written}: must be a whole number from {least}, as torchrun and srun set it; "
            f"start the command by one of them, or type `unset {name}`"
        )
    return int(written)


def reject_missing_interface() -> None:
    """Reject a GLOO_SOCKET_IFNAME that names no network interface of this machine."""
    known = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    for name in filter(None, os.environ.get(GLOO_INTERFACE, "").split(",")):
        if known and name not in known:
            raise UserError(
                f"{GLOO_INTERFACE}={name}: there is no such network interface; use one of "
                f"{', '.join(known)}, or type `unset {GLOO_INTERFACE}`"
            )


def node_around() -> Node:
    """The node of this pod: of a PyTorchJob with a Master, an elastic one, or a TrainJob.

    Of a range such as ``PET_NNODES=1:2`` in an elastic job the maximum counts.
    """
    names = ("PET_NNODES", "PET_NPROC_PER_NODE")
    counts = (os.environ.get(name, "").rpartition(":")[2] for name in names)
    # torchrun's "auto", "cpu" and "gpu" are left to `trainer.devices=auto`.
    return Node(*(int(each) if each.isdecimal() else None for each in counts))


def first_host(hosts: str) -> str:
    """The first host in Slurm's notation: node01 of ``node[01-04,07],login``."""
    return re.split(r"[,\s]", re.sub(r"\[(\d+)[^]]*\]", r"\1", hosts))[0]


def tell_lightning(ranks: Ranks) -> None:
    """Set the variables of torchrun, which Lightning reads, for ranks of srun."""
    node = os.environ.get("SLURM_NODEID", str(ranks.rank // ranks.on_this_node))
    os.environ |= {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_WORLD_SIZE": str(ranks.on_this_node),
        "GROUP_RANK": node,
        "TORCHELASTIC_RUN_ID": OF_SRUN,
    }


@contextmanager
def unchanged_environment(
    names: Sequence[str], meanwhile: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Restore environment variables at the end of the context; within it, some are set."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(meanwhile or {})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _is_task_of_srun() -> bool:
    """Whether srun started this process: only the tasks of a step have its number.

    A command in the shell of `srun --pty bash` has the shell's, and its terminal. The name of the
    job does not tell: `srun bash -c ...` makes it "bash", salloc "interactive".
    """
    step = os.environ.get("SLURM_STEP_ID", "")
    is_task = "SLURM_PROCID" in os.environ and step.isdecimal()
    if not is_task or int(step) >= FIRST_STEP_WITHOUT_SRUN:
        return False
    if "SLURM_PTY_PORT" in os.environ:  # which the tasks of a further srun inherit
        with suppress(OSError):
            os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
            return False
    return True


def _tasks_here(world: int) -> int:
    """Tasks of this step on this node; "2(x2),1" means two on each of two nodes, one on a third."""
    counts: list[int] = []
    written = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", written):
        counts += [int(count)] * int(times or 1)
    if (node := _number("SLURM_NODEID", 0)) < len(counts):
        return counts[node]
    nodes = os.environ.get("SLURM_STEP_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
    return max(1, world // int(nodes))


# The signals that stop training. Of several the last in this order counts.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT")
    if hasattr(signal, name)
)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block `SIGNALS` in this thread; a process started meanwhile inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Small test machines may run more processes than cores, but only within this limit.
MOST_PROCESSES_ON_A_SMALL_CPU = 8
# Lightning's short names of precisions, of which it warns.
PRECISIONS = {"16": "16-mixed", "32": "32-true", "64": "64-true", "bf16": "bf16-mixed"}


@cache
def count_gpus() -> int:
    """CUDA devices that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    listed = Path("/proc/driver/nvidia/gpus")
    if listed.is_dir() and any(listed.iterdir()):
        return len(list(listed.iterdir()))
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        lines = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in lines)


def count_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_mps() -> bool:
    """Whether this is a Mac with Apple's GPU."""
    return platform.system() == "Darwin" and platform.machine() == "arm64"


def accelerator(trainer: Any, one_device: bool) -> str:
    """`trainer.accelerator` resolved: "cuda", "mps" or "cpu".

    Apple's GPU cannot be in a process group, so it is used for a single process only.
    """
    wanted = str(trainer.accelerator)
    if wanted in ("auto", "gpu"):
        if count_gpus():
            return "cuda"
        if has_mps() and one_device:
            return "mps"
        return "cuda" if wanted == "gpu" else "cpu"
    return wanted


def local_devices(trainer: Any, one_device: bool) -> int:
    """`trainer.devices` resolved: devices (and processes) on this node.

    ``auto`` is one for a strategy of one process, else the ranks that torchrun or srun started
    here, PET_NPROC_PER_NODE of a pod, or every GPU; without a GPU, two CPU processes.
    0 means an invalid value: not auto, a number, or a list of GPU numbers.
    """
    devices = trainer.devices
    if devices in ("auto", -1, "-1"):
        if one_device:
            return 1
        if ranks := ranks_around():
            return ranks.on_this_node
        if asked := node_around().devices:
            return asked
        return count_gpus() if accelerator(trainer, one_device) == "cuda" else 2
    if isinstance(devices, str):
        parts = [part.strip() for part in devices.split(",") if part.strip()]
        numbers = [int(part) if part.isdecimal() else -1 for part in parts]
        devices = numbers if "," in devices else max(0, *numbers[:1], 0)
    if type(devices) is int:  # not `true`
        return devices
    if not isinstance(devices, Sequence) or len(set(devices)) < len(devices):
        return 0
    return len(devices) if all(type(each) is int and each >= 0 for each in devices) else 0


def num_nodes(trainer: Any) -> int:
    """`trainer.num_nodes` resolved.

    ``auto`` is the number of nodes of torchrun's or srun's ranks, Kubeflow's PET_NNODES, or one.
    """
    wanted = trainer.num_nodes
    if wanted != "auto":
        return int(wanted)
    if ranks := ranks_around():
        return ranks.nodes
    return node_around().nodes or 1


def is_alive(pid: int) -> bool:
    """Whether a process exists; always true on Windows, where asking would end it."""
    if os.name == "posix":
        try:
            os.kill(pid, 0)
        except OSError as error:  # of another kind: it is another user's
            return not isinstance(error, ProcessLookupError)
    return True


def full_precision_name(precision: Any) -> str:
    """`trainer.precision` as Lightning would have it: 16 is ``16-mixed``."""
    return PRECISIONS.get(str(precision), str(precision))


def most_devices(kind: str) -> int:
    """The maximum number of devices of an accelerator on this machine."""
    if kind == "cuda":
        return count_gpus()
    if kind == "mps":
        return int(has_mps())
    return max(MOST_PROCESSES_ON_A_SMALL_CPU, count_cores())
