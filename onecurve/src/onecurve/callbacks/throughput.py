"""The speed of training, and the utilization of the devices."""

import time
from typing import Any

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..arguments import configured_by
from ..optim.schedulers import steps_done
from .options import ThroughputOptions


class Throughput(Callback):
    """Logs the speed since the last line every so many steps, and of the whole run at its end.

    Lightning's ThroughputMonitor counts the batches of a rank; here samples are those of all ranks
    that see different ones. `trainer.profiler=simple` is Lightning's way to see where time goes.

    Floating-point operations are those of the matrix products and convolutions of one forward pass,
    of the task's `example_input_array`, and three times as many for training (Kaplan et al. 2020,
    https://arxiv.org/abs/2001.08361, section 2.1). Their share of the peak (MFU) is logged for GPUs
    whose peak Lightning knows.
    """

    @configured_by(ThroughputOptions, "callbacks.throughput")
    def __init__(self, options: ThroughputOptions) -> None:
        self.every_n_steps = options.every_n_steps
        self.final_facts: dict[str, float] = {}
        self._flops_a_sample = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Count the operations of a sample before the network is sharded or split."""
        if stage == "fit":
            inputs = trainer.strategy.example_inputs()  # type: ignore[attr-defined]
            self._flops_a_sample = 3.0 * forward_flops(pl_module, inputs)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first = self._last = _done(trainer)
        self._last_step = steps_done(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        step = steps_done(trainer)
        if step - self._last_step < self.every_n_steps:
            return
        rates = self._rates(trainer, self._last)
        values = {f"throughput/{name}": value for name, value in rates.items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step - 1)
        self._last, self._last_step = _done(trainer), step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        facts = self._rates(trainer, self._first)
        # The run's own figure includes the time before and after training.
        facts["samples_per_second_in_training"] = facts.pop("samples_per_second")
        self.final_facts = facts

    def _rates(self, trainer: Trainer, since: tuple[float, int, int]) -> dict[str, float]:
        seconds, batches, samples = (b - a for a, b in zip(since, _done(trainer), strict=True))
        seconds = max(seconds, 1e-9)
        rates = {"samples_per_second": samples / seconds, "batches_per_second": batches / seconds}
        if self._flops_a_sample:
            rates["flops_per_second"] = rates["samples_per_second"] * self._flops_a_sample
            peak = get_available_flops(trainer.strategy.root_device, _dtype(trainer))
            if peak:
                rates["mfu"] = rates["flops_per_second"] / (peak * trainer.world_size)
        return rates


def _done(trainer: Trainer) -> tuple[float, int, int]:
    """The time, and the batches and samples of the run so far."""
    samples: int = trainer.strategy.samples_seen  # type: ignore[attr-defined]
    return time.perf_counter(), trainer.fit_loop.total_batch_idx + 1, samples


def forward_flops(module: LightningModule, inputs: tuple[Tensor, ...] | None) -> int:
    """Floating-point operations of a forward pass of one sample; 0 if it takes other inputs."""
    if inputs is None:
        return 0
    was_training = module.training
    module.eval()
    one = [value[:1].to(module.device) for value in inputs]
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), torch.random.fork_rng(), counter:
            module(*one)
    except Exception:  # a task whose steps call its network in another way
        return 0
    finally:
        module.train(was_training)
    return int(counter.get_total_flops())


def _dtype(trainer: Trainer) -> torch.dtype:
    precision = str(trainer.precision)
    if precision.startswith("bf16"):
        return torch.bfloat16
    return torch.float16 if precision.startswith("16") else torch.float32
