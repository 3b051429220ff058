"""A transformer of 1 billion parameters under FSDP2, bf16-mixed, compiled: how fast and how full.

Tokens a second and MFU are those of ten steps after the first ten; the share of our code is that of
five more, by cProfile: time in functions of this package, and in what they call of C. Profiling
makes Python slower, so the share is an upper bound; what autograd's own threads run is not in it.
"""

import cProfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers.logger import DummyLogger

import onecurve
from onecurve.callbacks.device_stats import peak_bytes, reset_peak
from onecurve.callbacks.throughput import Throughput
from onecurve.planner.hardware import HARDWARE, Hardware, cpu
from onecurve.planner.meshes import best
from onecurve.planner.network import Network, Precision, Request
from onecurve.strategies.fsdp.strategy import FSDP
from onecurve.strategies.layers import find_layers
from onecurve.strategies.mesh.sizes import Sizes

from .tasks import BILLION, TINY, Size, tokens, transformer

WINDOW, PROFILED = 10, 5
OURS = str(Path(onecurve.__file__).parent)


class Measured(Throughput):
    """Also waits for the GPU where it looks at the clock, and profiles some steps."""

    def __init__(self) -> None:
        super().__init__(every_n_steps=WINDOW)
        self.begun = self.step_begun = time.perf_counter()
        self.facts: dict[str, float] = {}
        self.profile = cProfile.Profile()

    def on_train_batch_start(self, trainer: Trainer, *arguments: Any, **named: Any) -> None:
        super().on_train_batch_start(trainer, *arguments, **named)
        if trainer.global_step == 0:
            self.step_begun = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any, **named: Any) -> None:
        step, device = trainer.global_step, trainer.strategy.root_device
        if step in (1, WINDOW, 2 * WINDOW) and device.type == "cuda":
            torch.cuda.synchronize()
        if step == 1:
            now = time.perf_counter()
            self.facts["seconds_of_first_step"] = now - self.step_begun
            self.facts["seconds_to_end_of_first_step"] = now - self.begun
        if step == WINDOW:
            reset_peak(device)
        super().on_train_batch_end(trainer, *arguments, **named)
        if step == 2 * WINDOW:
            self.facts["peak_bytes"] = peak_bytes(device)
            self.step_begun = time.perf_counter()
            self.profile.enable()
        if step == 2 * WINDOW + PROFILED:
            self.profile.disable()
            passed = time.perf_counter() - self.step_begun
            self.facts["share_of_our_code"] = _seconds_of_ours(self.profile) / passed


class Log(DummyLogger):
    """Keeps the last values that Throughput logs."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.last |= {name: float(value) for name, value in metrics.items()}


def measured(device: str) -> dict[str, Any]:
    """Train it, and plan it."""
    size = BILLION if device == "cuda" else TINY
    measures, log = Measured(), Log()
    with torch.device(device):
        task = transformer(size)
    task.to(device)  # tells Lightning
    parameters = sum(each.numel() for each in task.parameters())
    strategy = FSDP()
    strategy.compiled = "layer"
    steps = 2 * WINDOW + PROFILED
    parts = ("checkpointing", "progress_bar", "model_summary")
    alone: dict[str, Any] = {f"enable_{part}": False for part in parts}
    trainer = Trainer(
        strategy=strategy,
        accelerator=device,
        devices=1,
        precision="bf16-mixed",
        max_steps=steps,
        logger=log,
        callbacks=[measures],
        log_every_n_steps=1,
        **alone,
    )
    trainer.fit(task, tokens(size, steps))
    loss = float(trainer.callback_metrics["train/loss"])
    speed = {name.removeprefix("throughput/"): value for name, value in log.last.items()}
    facts = measures.facts
    return {
        "outcome": "measured" if loss == loss else "differs",
        "reason": "" if loss == loss else "the loss is no number",
        "parameters": parameters,
        "tokens_a_step": size.batch * size.length,
        "final_loss": loss,
        "tokens_per_second": speed["samples_per_second"] * size.length,
        "mfu": speed.get("mfu"),
        "data_share": speed["data_share"],
        **facts,
        **_planned(size, device, facts["peak_bytes"]),
    }


def _seconds_of_ours(profile: cProfile.Profile) -> float:
    seconds = 0.0
    profile.create_stats()
    stats: dict[Any, Any] = profile.stats
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if file.startswith(OURS):
            seconds += own
        elif file == "~":  # of C
            for (caller, _, _), (_, _, in_it, _) in callers.items():
                seconds += in_it if caller.startswith(OURS) else 0.0
    return seconds


def _planned(size: Size, device: str, peak: float) -> dict[str, Any]:
    with torch.device("meta"):
        task, words = transformer(size), torch.empty(1, size.length, dtype=torch.long)
    network = Network(
        find_layers(task) or {},
        (words,),
        loss=task.loss,
        targets=words,
        precision=Precision.named("bf16-mixed"),
        fused=True,
    )
    request = Request(network, _hardware(device), 1, 1, size.batch, checkpointing=("none",))
    plan = best(request, Sizes())
    if isinstance(plan, str):
        return {"plan": plan}
    return {
        "planned_bytes": plan.fullest.total,
        "planned_bytes_of": plan.fullest._asdict(),
        "planned_tokens_per_second": size.batch * size.length / plan.seconds,
        # A process on a CPU holds its libraries, too.
        "peak_over_plan": peak / plan.fullest.total if device == "cuda" else None,
    }


def _hardware(device: str) -> Hardware:
    """The card's kind where the planner knows it; an H100, and the memory that there is, else."""
    if device != "cuda":
        return cpu()
    card = torch.cuda.get_device_properties(0)
    kind = next((kind for kind in HARDWARE if kind in card.name.lower()), "h100")
    return HARDWARE[kind]._replace(memory=float(card.total_memory))
