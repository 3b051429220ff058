"""Memory and processor time of every rank, and the peak memory of a run."""

import time
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from .. import machine
from ..arguments import configured_by
from ..optim.steps import steps_done
from ..strategies.mesh.ranks import each_rank_has
from .options import DeviceStatsOptions


class DeviceStats(Callback):
    """Logs memory and processor time of every rank, each under its own name.

    Lightning's DeviceStatsMonitor logs rank 0 alone, and on a CPU the whole machine.
    ``memory_mib`` is what PyTorch has allocated on a GPU, elsewhere the peak size of the process;
    ``cpu_percent`` is the processor time of the process, 100 for one core.
    """

    @configured_by(DeviceStatsOptions, "callbacks.device_stats")
    def __init__(self, options: DeviceStatsOptions) -> None:
        self.every_n_steps = options.every_n_steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before = time.perf_counter(), time.process_time()
        self._last_step = steps_done(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        if steps_done(trainer) - self._last_step < self.every_n_steps:
            return
        self._last_step = steps_done(trainer)
        ranks = each_rank_has(self._measure(trainer.strategy.root_device), None)
        stats = {
            f"device/rank_{rank}/{name}": value
            for rank, values in enumerate(ranks)
            for name, value in values.items()
        }
        for logger in trainer.loggers:
            logger.log_metrics(stats, step=steps_done(trainer) - 1)

    def _measure(self, device: torch.device) -> dict[str, float]:
        before, now = self._before, (time.perf_counter(), time.process_time())
        self._before = now
        stats = {"cpu_percent": 100 * (now[1] - before[1]) / max(now[0] - before[0], 1e-9)}
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            stats["memory_mib"] = torch.cuda.memory_allocated(device) / 2**20
            stats["reserved_mib"] = torch.cuda.memory_reserved(device) / 2**20
            stats["used_share"] = 1 - free / total
        else:
            stats["memory_mib"] = machine.peak_memory() / 2**20
        return stats


class PeakMemory(Callback):
    """The peak memory of a training run on GPUs, on the rank that needs most.

    It is what PyTorch has allocated. On a CPU the size of a process is mostly that of its
    libraries, and says nothing about the network.
    """

    def __init__(self) -> None:
        self.final_facts: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        reset_peak(trainer.strategy.root_device)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        device = trainer.strategy.root_device
        if device.type != "cuda":
            return
        most = torch.tensor(peak_bytes(device) / 2**20, dtype=torch.float32, device=device)
        if trainer.world_size > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        self.final_facts = {"peak_memory_mib": round(float(most), 1)}


def reset_peak(device: torch.device) -> None:
    """Measure the peak memory from now on: see `peak_bytes`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        machine.reset_peak_memory()


def peak_bytes(device: torch.device) -> int:
    """The most that PyTorch has allocated on a GPU, or that this process took elsewhere."""
    is_gpu = device.type == "cuda"
    return torch.cuda.max_memory_allocated(device) if is_gpu else machine.peak_memory()
