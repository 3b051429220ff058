"""What every rank's device and process are doing."""

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from .. import process_memory


class DeviceStats(Callback):
    """Logs memory and load of every rank, each under its own name.

    Lightning's DeviceStatsMonitor logs the first rank's alone, on a CPU those of the whole machine.
    ``memory_mib`` is what PyTorch has allocated on a GPU, or the largest size of the process;
    ``cpu_percent`` is the processor time of the process, 100 for one core.

    Args:
        every_n_steps: Optimizer steps between two lines.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        self.every_n_steps = every_n_steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before = time.perf_counter(), time.process_time()
        self._last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step - self._last_step < self.every_n_steps:
            return
        self._last_step = trainer.global_step
        mine = self._measure(trainer.strategy.root_device)
        names, values = list(mine), torch.tensor(list(mine.values()), dtype=torch.float32)
        everybody: Tensor = trainer.strategy.all_gather(values.to(trainer.strategy.root_device))
        ranks = everybody.view(trainer.world_size, len(names)).tolist()
        stats = {
            f"device/rank_{rank}/{name}": value
            for rank, row in enumerate(ranks)
            for name, value in zip(names, row, strict=True)
        }
        for logger in trainer.loggers:
            logger.log_metrics(stats, step=trainer.global_step - 1)

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
            stats["memory_mib"] = process_memory.peak_bytes() / 2**20
        return stats
