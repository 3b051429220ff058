"""How much memory a run takes, on the rank that needs most."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

MIB = 2**20


class PeakMemory(Callback):
    """Measures every training run, so that the jobs of a sweep can be compared.

    On a GPU it is what PyTorch has allocated at most, elsewhere the largest size of the process
    with its libraries. Only Linux can tell the latter for a job alone where a process trains
    several one after the other.

    Attributes:
        final_facts: ``peak_memory_mib``, for metrics.json.
    """

    def __init__(self) -> None:
        self.final_facts: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what was before."""
        device = trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):
                # Resets VmHWM: man 5 proc_pid_clear_refs.
                Path("/proc/self/clear_refs").write_text("5")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask all ranks."""
        device = trainer.strategy.root_device
        most = torch.tensor(peak_bytes(device) / MIB, dtype=torch.float32, device=device)
        if trainer.world_size > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        self.final_facts = {"peak_memory_mib": round(float(most), 1)}


def peak_bytes(device: torch.device) -> int:
    """Bytes since the measurement began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Only Linux has it.
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
