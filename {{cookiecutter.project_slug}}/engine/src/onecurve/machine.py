"""What this machine offers and how many processes a run needs, without importing torch."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Test machines are small: allow some more processes than cores, but not by mistake.
MOST_PROCESSES_ON_A_SMALL_CPU = 8


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
    """`trainer.accelerator` made definite: "cuda", "mps" or "cpu".

    Apple's GPU cannot take part in a process group, so it counts for one process alone.
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
    """`trainer.devices` made definite: devices (and processes) on this node.

    ``auto`` is one for a strategy of one process, else the ranks that torchrun or srun started
    here, or every GPU; without a GPU, two CPU processes.
    0 stands for a value that is none of auto, a number and a list of GPU numbers.
    """
    devices = trainer.devices
    if isinstance(devices, bool):
        return 0
    if devices in ("auto", -1, "-1"):
        if one_device:
            return 1
        if ranks := ranks_around():
            return ranks.on_this_node
        return count_gpus() if accelerator(trainer, one_device) == "cuda" else 2
    if isinstance(devices, int):
        return devices
    if isinstance(devices, str):
        parts = [part.strip() for part in devices.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() for part in parts):
            return 0
        return len(parts) if "," in devices else int(devices)
    if not isinstance(devices, Sequence) or len(set(devices)) < len(devices):
        return 0
    return len(devices) if all(_is_number_of_a_gpu(entry) for entry in devices) else 0


def _is_number_of_a_gpu(entry: Any) -> bool:
    return isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0


def most_devices(kind: str) -> int:
    """How many devices of an accelerator a run may ask for here."""
    if kind == "cuda":
        return count_gpus()
    if kind == "mps":
        return int(has_mps())
    return max(MOST_PROCESSES_ON_A_SMALL_CPU, count_cores())


class Ranks(NamedTuple):
    """What this process is told about itself by torchrun or srun, which started it."""

    rank: int
    local_rank: int
    world_size: int
    on_this_node: int
    starter: str

    @property
    def nodes(self) -> int:
        """How many nodes they are on."""
        return self.world_size // self.on_this_node


def ranks_around() -> Ranks | None:
    """The ranks of which this process is one; None if it was started by hand.

    torchelastic's own workers are ranks as well. A pod of a Kubeflow PyTorchJob is none: it has
    RANK but no LOCAL_RANK, and starts the ranks of its node by itself.
    """
    environment = os.environ
    if "RANK" in environment and "LOCAL_RANK" in environment:
        world = int(environment.get("WORLD_SIZE", "1"))
        here = int(environment.get("LOCAL_WORLD_SIZE", world))
        return Ranks(
            int(environment["RANK"]), int(environment["LOCAL_RANK"]), world, here, "torchrun"
        )
    # One task needs no others, and Slurm's interactive shells are one task of many.
    world = int(environment.get("SLURM_NTASKS", "1"))
    by_hand = environment.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_PROCID" not in environment or world == 1 or by_hand:
        return None
    rank = int(environment["SLURM_PROCID"])
    nodes = int(environment.get("SLURM_NNODES") or environment.get("SLURM_JOB_NUM_NODES") or "1")
    # Slurm writes "2(x2)" into some: two on each of two nodes.
    per_node = (environment.get("SLURM_NTASKS_PER_NODE") or "").partition("(")[0]
    here = int(per_node) if per_node.isdecimal() and int(per_node) else world // nodes
    return Ranks(rank, int(environment.get("SLURM_LOCALID", rank % here)), world, here, "srun")
