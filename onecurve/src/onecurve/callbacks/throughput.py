"""The speed of training, the shares of its time, and the utilization of the devices."""

import time
from contextlib import ExitStack
from typing import Any

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import Profiler
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..arguments import configured_by
from ..compat.patches import replaced
from ..optim.steps import steps_done
from .options import ThroughputOptions

# What Lightning calls two of the actions that it reports to a profiler.
FETCHING, SAVING = "].train_dataloader_next", "save_checkpoint"
SECTIONS = ("data", "step", "validation", "checkpoint")


class Throughput(Callback):
    """Logs speed and shares of time every so many steps, and for the whole run at its end.

    Shares are of the time since the last line, on rank 0: waiting for ``data``, the ``step`` with
    its hooks and loggers, ``validation`` and saving a ``checkpoint``. A GPU works asynchronously:
    its time is counted where the program waits for it, which is in the step if a value is logged.

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
        self._clock = Stopwatch()
        self._wrapped = ExitStack()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Count the operations of a sample before the network is sharded or split."""
        if stage == "fit":
            inputs = trainer.strategy.example_inputs()  # type: ignore[attr-defined]
            self._flops_a_sample = 3.0 * forward_flops(pl_module, inputs)
            self._watch(trainer.profiler)  # type: ignore[attr-defined]

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self._wrapped.close()

    on_exception = teardown  # after an error Lightning calls no `teardown`

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.start("data")
        self._first = self._last = self._count(trainer)
        self._last_step = steps_done(trainer)

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        self._clock.enter("step")

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        step = steps_done(trainer)
        if step - self._last_step < self.every_n_steps:
            return
        rates = self._rates(trainer, self._last)
        values = {f"throughput/{name}": value for name, value in rates.items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step - 1)
        self._last, self._last_step = self._count(trainer), step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.enter("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.enter("step")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What follows is waiting for the workers of the next epoch's loader."""
        self._clock.enter("data")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clock.enter("data")
        facts = self._rates(trainer, self._first)
        # The run's own figure includes the time before and after training.
        facts["samples_per_second_in_training"] = facts.pop("samples_per_second")
        self.final_facts = facts

    def _watch(self, profiler: Profiler) -> None:
        """Only a profiler is called around what fetches a batch, and what saves a checkpoint."""
        start, stop = profiler.start, profiler.stop
        around: list[str | None] = []

        def begin(action_name: str) -> None:
            if section := _section_of(action_name):
                around.append(self._clock.enter(section))
            start(action_name)

        def end(action_name: str) -> None:
            stop(action_name)
            if _section_of(action_name):
                self._clock.enter(around.pop() or "step")

        self._wrapped.enter_context(replaced(profiler, "start", begin))
        self._wrapped.enter_context(replaced(profiler, "stop", end))

    def _count(self, trainer: Trainer) -> dict[str, float]:
        """What the run has done so far, and the seconds that it spent in each section."""
        samples = trainer.strategy.samples_seen  # type: ignore[attr-defined]
        batches = trainer.fit_loop.total_batch_idx + 1
        return {"batches": batches, "samples": samples, **self._clock.seconds}

    def _rates(self, trainer: Trainer, since: dict[str, float]) -> dict[str, float]:
        done = {name: value - since[name] for name, value in self._count(trainer).items()}
        seconds = max(sum(done[name] for name in SECTIONS), 1e-9)
        rates = {f"{name}_per_second": done[name] / seconds for name in ("samples", "batches")}
        rates |= {f"{name}_share": done[name] / seconds for name in SECTIONS}
        if self._flops_a_sample:
            rates["flops_per_second"] = rates["samples_per_second"] * self._flops_a_sample
            peak = get_available_flops(trainer.strategy.root_device, _dtype(trainer))
            if peak:
                rates["mfu"] = rates["flops_per_second"] / (peak * trainer.world_size)
        return rates


class Stopwatch:
    """Measures the seconds that are spent in each section."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(SECTIONS, 0.0)
        self._section: str | None = None
        self._since = 0.0

    def start(self, section: str) -> None:
        self._section, self._since = section, time.perf_counter()

    def enter(self, section: str) -> str | None:
        """Change to a section, if the stopwatch was started; the section that was left."""
        before = self._section
        if before is not None:
            now = time.perf_counter()
            self.seconds[before] += now - self._since
            self._section, self._since = section, now
        return before


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


def _section_of(action_name: str) -> str | None:
    if action_name.endswith(FETCHING):
        return "data"
    return "checkpoint" if action_name == SAVING else None


def _dtype(trainer: Trainer) -> torch.dtype:
    precision = str(trainer.precision)
    if precision.startswith("bf16"):
        return torch.bfloat16
    return torch.float16 if precision.startswith("16") else torch.float32
