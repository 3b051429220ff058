"""This machine and this process, without torch: devices, ranks of a run, and peak memory."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # not on Windows, where no peak is known
    resource = None  # type: ignore[assignment]

from .surroundings import Ranks, node_around, ranks_around

__all__ = ["Ranks", "ranks_around"]

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
    if isinstance(devices, bool):
        return 0
    if devices in ("auto", -1, "-1"):
        if one_device:
            return 1
        if ranks := ranks_around():
            return ranks.on_this_node
        if asked := node_around().devices:
            return asked
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
    # Not `true`, which is an int.
    return len(devices) if all(type(each) is int and each >= 0 for each in devices) else 0


def num_nodes(trainer: Any, most: int | None = None) -> int:
    """`trainer.num_nodes` resolved.

    ``auto`` is the number of nodes of torchrun's or srun's ranks, the maximum of `launch.nodes`,
    Kubeflow's PET_NNODES, or one.
    """
    wanted = trainer.num_nodes
    if wanted != "auto":
        return int(wanted)
    if ranks := ranks_around():
        return ranks.nodes
    return most or node_around().nodes or 1


def is_alive(pid: int) -> bool:
    """Whether a process exists; always true on Windows, where asking would end it."""
    if os.name == "posix":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it is another user's
            pass
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


def reset_peak_memory() -> None:
    """Reset the peak memory of this process; only Linux can."""
    with suppress(OSError):
        # Resets VmHWM: man 5 proc_pid_clear_refs.
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The peak in bytes since `reset_peak_memory`, or of the whole process; 0 if it is unknown."""
    # Only on Linux.
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
