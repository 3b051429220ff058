"""How much memory a run takes, on the rank that needs most."""

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from .. import process_memory

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
        device = trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            process_memory.reset_peak()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        device = trainer.strategy.root_device
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device)
        else:
            peak = process_memory.peak_bytes()
        most = torch.tensor(peak / MIB, dtype=torch.float32, device=device)
        if trainer.world_size > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        self.final_facts = {"peak_memory_mib": round(float(most), 1)}
