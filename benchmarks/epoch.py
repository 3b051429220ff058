"""One epoch of 60,000 28 x 28 images: the project's training against hand-written loops.

All train the same network with AdamW at batch size 128 on the same uint8 images in memory, on the
CPU. The project runs with everything that it switches on by default: checkpoints, progress,
learning-rate monitor, CSV and TensorBoard loggers, the loss logged at every step, a fused
optimizer. One loop is as people write it, with PyTorch's default optimizer; the other has the same
fused one. What is timed is one epoch from its first batch to the end of training, checkpoint
included. They alternate in one process, so that a machine that slows down slows all.

    python benchmarks/epoch.py [ROUNDS]

Prints, for each network and loop, the median of the ratios round by round. Exit status 1 if one is
above its limit.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from baked import folder_for_runs, median_ratio, print_head, print_row, train
from hydra.utils import instantiate
from lightning.pytorch import Callback
from omegaconf import OmegaConf

# Against the loop with PyTorch's default optimizer, and against that with the fused one.
LIMITS = {"lenet": {"default": 1.0, "fused": 1.1}, "mlp": {"default": 1.0, "fused": 1.25}}
FUSED = {"default": None, "fused": True}
# LeNet-5 reads 28 x 28 images in a margin of two black pixels.
IMAGE_SIZE = {"lenet": 32, "mlp": 28}
TASK = (
    "data=synthetic",
    "data.num_samples=60000",
    # The hand-written loop does not validate; one batch is what the checkpoint's metric needs.
    "data.num_val=128",
    "data.batch_size=128",
    "scheduler=none",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "test=false",
    "+callbacks.stopwatch._target_=epoch.Stopwatch",
)


class Stopwatch(Callback):
    """Times training from the first batch to the end, when other callbacks have seen it end."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.started = time.perf_counter()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        seconds = time.perf_counter() - self.started
        (Path(trainer.default_root_dir) / "seconds").write_text(str(seconds))


def by_hand(run: Path, fused: bool | None) -> float:
    """Seconds of one epoch by the shortest correct loop, of what a run has trained."""
    cfg: Any = OmegaConf.load(run / "config.yaml")
    data = instantiate(cfg.data)
    data.setup("fit")
    dataset = data.datasets[0]
    images, labels = dataset.images, dataset.labels
    network = instantiate(cfg.model)
    options = {key: cfg.optimizer[key] for key in ("lr", "weight_decay", "eps")}
    optimizer = torch.optim.AdamW(network.parameters(), fused=fused, **options)
    mean, std = cfg.data.mean[0], cfg.data.std[0]
    started = time.perf_counter()
    for index in torch.randperm(len(images)).split(cfg.data.batch_size):
        inputs = (images[index].float() / 255 - mean) / std
        loss = F.cross_entropy(network(inputs), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - started


def main(rounds: int = 7) -> int:
    """Measure, print, and say whether the limits hold."""
    held = True
    print_head("network", "optimizer of the loop", "project / hand-written loop", "limit")
    for model, limits in LIMITS.items():
        project: list[float] = []
        loops: dict[str, list[float]] = {name: [] for name in limits}
        for _ in range(rounds + 1):
            run = train(*TASK, f"model={model}", f"data.image_size={IMAGE_SIZE[model]}")
            project.append(float((run / "seconds").read_text()))
            for name, seconds in loops.items():
                seconds.append(by_hand(run, FUSED[name]))
        for name, limit in limits.items():
            # The first round also warms up caches.
            ratio = median_ratio(project[1:], loops[name][1:])
            held &= ratio <= limit
            print_row(model, name, f"{ratio:.2f}", f"{limit:.2f}")
    return 0 if held else 1


if __name__ == "__main__":
    with folder_for_runs():
        sys.exit(main(*map(int, sys.argv[1:])))
