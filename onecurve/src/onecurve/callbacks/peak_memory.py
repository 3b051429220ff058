"""The peak memory of a run on GPUs."""

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer


class PeakMemory(Callback):
    """What PyTorch has allocated at most in training, on the rank that needs most.

    Lightning's DeviceStatsMonitor logs the first rank alone. On a CPU the size of a process is
    mostly that of its libraries, and says nothing about the network.
    """

    def __init__(self) -> None:
        self.final_facts: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.strategy.root_device)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        device = trainer.strategy.root_device
        if device.type != "cuda":
            return
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        most = torch.tensor(peak, dtype=torch.float32, device=device)
        if trainer.world_size > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        self.final_facts = {"peak_memory_mib": round(float(most), 1)}
