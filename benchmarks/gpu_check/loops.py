"""One training, three ways: a loop of PyTorch alone, a plain Lightning Trainer, and this library.

All train the same network on the same batches in bfloat16 with fused AdamW, and look at the same
clock. FSDP2 with compiled layers for the transformer; neither for ResNet.
"""

import os
import time
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

from onecurve import FSDP, Single
from onecurve.callbacks.throughput import forward_flops
from onecurve.strategies.ac_compile import Compiled

from . import bare
from .tasks import BILLION, TINY, Size, Task, images, resnet, tokens, transformer

BARE, LIGHTNING, OURS = LOOPS = ("bare loop", "plain Lightning", "onecurve")
WARM, WINDOW, WINDOWS, WATCHED = 4, 10, 2, 5
"""Steps before the first window, of a window; windows; steps that are watched after them."""


class Setting(NamedTuple):
    """What is trained, and how it is run."""

    network: str = "large"
    fused: bool = True
    chunks: int = 0
    compiled: Compiled = "layer"
    sharded: bool = True
    reshard: Any = "auto"
    attention: str = ""  # a kernel, by its name in SDPBackend; PyTorch's choice without one
    batch: float = 1  # times the usual one
    length: float = 1

    def size(self, on_gpu: bool) -> Size:
        usual = BILLION if on_gpu else TINY
        batch, length = int(usual.batch * self.batch), int(usual.length * self.length)
        return usual._replace(batch=batch, length=length)

    def task(self, on_gpu: bool) -> Task:
        """On the device that is the default now; its weights are the same every time."""
        torch.manual_seed(0)
        if self.network == "resnet":
            return resnet(on_gpu, fused=self.fused)
        return transformer(self.size(on_gpu), fused=self.fused, chunks=self.chunks)

    def data(self, on_gpu: bool, steps: int) -> DataLoader[Any]:
        if self.network == "resnet":
            return images(on_gpu, steps)
        return tokens(self.size(on_gpu), steps)


SETTINGS = {"large": Setting(), "resnet": Setting("resnet", compiled="none", sharded=False)}


class Clock(Callback):
    """Notes how long the first step and each window take; waits for the GPU at their ends only.

    After the last window it enters `watch`, for some further steps.
    """

    last = WARM + WINDOWS * WINDOW
    steps = last + WATCHED

    def __init__(self, device: torch.device, watch: AbstractContextManager[Any]) -> None:
        self.device, self.watch = device, watch
        self.step, self.since = 0, time.perf_counter()
        self.first = self.watched = self.peak = 0.0
        self.windows: list[float] = []

    def tick(self) -> None:
        self.step += 1
        in_window, rest = divmod(self.step - WARM, WINDOW)
        at_edge = rest == 0 and self.step <= self.last
        if not (at_edge or self.step in (1, self.steps)):
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        passed = time.perf_counter() - self.since
        if self.step == 1:
            self.first = passed
        elif self.step > self.last:
            self.watch.__exit__(None, None, None)
            self.watched = passed
        elif in_window == 0:
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self.windows.append(passed / WINDOW)
        if self.step == self.last:
            self.peak = torch.cuda.max_memory_allocated()  # 0 without a GPU
            self.watch.__enter__()
        self.since = time.perf_counter()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.tick()


class ShardsItself(Task):
    """The task as plain Lightning asks for it: `configure_model` applies FSDP2."""

    def __init__(self, task: Task, backend: str | None) -> None:
        super().__init__(task.network, task.lr, task.fused)
        self.backend = backend

    def configure_model(self) -> None:
        if self.backend and self.device_mesh is not None:
            bare.compile_and_shard(self.network, self.device_mesh["data_parallel"], self.backend)  # type: ignore[arg-type]
            self.loss = torch.compile(self.loss, backend=self.backend)  # type: ignore[method-assign]


def run(
    loop: str, setting: Setting, device: str, cache: str, watch: Any = None
) -> tuple[dict[str, Any], float]:
    """Train in one of `LOOPS`, and watch some steps after the measured ones.

    Compiled code goes into the cache: a new folder makes the first step a cold one.

    Returns:
        What was measured, and the seconds that were watched.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    on_gpu = device == "cuda"
    with torch.device(device):
        task = setting.task(on_gpu)
    task.to(device)  # tells Lightning
    clock = Clock(torch.device(device), watch or nullcontext())
    data = setting.data(on_gpu, clock.steps)
    batch = next(iter(data))[0]
    clock.since = time.perf_counter()
    kernel = SDPBackend.__members__.get(setting.attention)
    with sdpa_kernel(kernel) if kernel else nullcontext():
        loss = _train(loop, task, setting, data, clock)
    units = batch.numel() if setting.network == "large" else len(batch)
    with torch.device("meta"):
        flops = 3.0 * len(batch) * forward_flops(setting.task(on_gpu), (batch,))
    peak = get_available_flops(torch.device(device), torch.bfloat16) if on_gpu else None
    facts = {
        "outcome": "measured" if loss == loss else "differs",
        "reason": "" if loss == loss else "the loss is no number",
        "parameters": sum(each.numel() for each in task.parameters()),
        "units_a_step": units,
        "flops_of_unit": flops / units,
        "peak_flops": peak,
        "final_loss": loss,
        "seconds_of_step": median(clock.windows),
        "windows": clock.windows,
        "seconds_of_first_step": clock.first,
        "peak_bytes": clock.peak,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }
    return facts, clock.watched


def _train(loop: str, task: Task, setting: Setting, data: DataLoader[Any], clock: Clock) -> float:
    # On a CPU a backend that generates no code, as nobody asks how fast that is.
    backend = "inductor" if clock.device.type == "cuda" else "aot_eager"
    used = None if setting.compiled == "none" else backend
    if loop == BARE:
        return bare.train(task.network, task.loss, data, clock.device, used, clock.tick)
    if loop == LIGHTNING:
        plain = ModelParallelStrategy(1, 1) if setting.sharded else "auto"
        return _fit(ShardsItself(task, used), plain, data, clock)
    strategy = FSDP(reshard_after_forward=setting.reshard) if setting.sharded else Single()
    strategy.compiled = setting.compiled
    strategy.compile_backend = backend
    return _fit(task, strategy, data, clock)


def _fit(task: Task, strategy: Any, data: DataLoader[Any], clock: Clock) -> float:
    parts = ("checkpointing", "progress_bar", "model_summary")
    alone: dict[str, Any] = {f"enable_{part}": False for part in parts}
    trainer = Trainer(
        strategy=strategy,
        accelerator=clock.device.type,
        devices=1,
        precision="bf16-mixed",
        max_steps=clock.steps,
        use_distributed_sampler=False,  # it shuffles, and the batches of all loops are the same
        logger=False,
        callbacks=[clock],
        **alone,
    )
    trainer.fit(task, data)
    return float(trainer.callback_metrics["train/loss"])
