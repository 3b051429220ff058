"""One epoch of 60,000 28 x 28 images: the project's training against a hand-written loop.

Both train the same network with AdamW at batch size 128 on the same uint8 images in memory, on the
CPU. The project runs with everything that it switches on by default: checkpoints, progress,
learning-rate monitor, CSV and TensorBoard loggers, the loss logged at every step. What is timed is
one epoch from its first batch to the end of training, checkpoint included. The two alternate in one
process, so that a machine that slows down slows both.

    python benchmarks/epoch.py [PAIRS]

Prints, for each network, the ratio of the best times (whatever else runs on a machine only ever
adds) and the median of the ratios pair by pair. Exit status 1 if the first is above its limit.
"""

import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from lightning.pytorch import Callback
from omegaconf import OmegaConf

from onecurve.command.resolvers import register_resolvers
from onecurve.launch.logs import log_to_file
from onecurve.run import fit

CONFIGS = Path(__file__).resolve().parent.parent / "build" / "my-project" / "configs"
LIMITS = {"lenet": 1.2, "mlp": 1.6}
# LeNet-5 reads 28 x 28 images in a margin of two black pixels.
IMAGE_SIZE = {"lenet": 32, "mlp": 28}
RUN_DIRECTORY = "/run-directory"


class Stopwatch(Callback):
    """Times training from the first batch to the end."""

    seconds = 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first batch is about to be read."""
        self.started = time.perf_counter()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """All other callbacks have seen the last epoch end."""
        Stopwatch.seconds = time.perf_counter() - self.started


def configuration(model: str) -> dict[str, Any]:
    """The default configuration with 60,000 synthetic images and one epoch."""
    overrides = [
        f"model={model}",
        "data=synthetic",
        "data.num_samples=60000",
        # The hand-written loop does not validate; one batch is what the checkpoint's metric needs.
        "data.num_val=128",
        "data.batch_size=128",
        f"data.image_size={IMAGE_SIZE[model]}",
        "scheduler=none",
        "trainer.max_epochs=1",
        "test=false",
        f"paths.run={RUN_DIRECTORY}",
        "+callbacks.stopwatch._target_=__main__.Stopwatch",
    ]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = OmegaConf.to_container(compose("train", overrides), resolve=True)
    assert isinstance(config, dict)
    return config


def project(config: dict[str, Any]) -> float:
    """Seconds of one epoch by the project."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        placed = json.loads(json.dumps(config).replace(RUN_DIRECTORY, folder))
        with log_to_file(Path(folder), rank=0):
            fit.work(placed, Path(folder))
    return Stopwatch.seconds


def by_hand(config: dict[str, Any]) -> float:
    """Seconds of one epoch by the shortest correct loop."""
    cfg = OmegaConf.create(config)
    data = instantiate(cfg.data)
    data.setup("fit")
    dataset = data.datasets[0]
    images, labels = dataset.images, dataset.labels
    network = instantiate(cfg.model)
    options = {key: cfg.optimizer[key] for key in ("lr", "weight_decay", "eps")}
    optimizer = torch.optim.AdamW(network.parameters(), **options)
    mean, std = cfg.data.mean[0], cfg.data.std[0]
    started = time.perf_counter()
    for index in torch.randperm(len(images)).split(cfg.data.batch_size):
        inputs = (images[index].float() / 255 - mean) / std
        loss = F.cross_entropy(network(inputs), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - started


def main(pairs: int) -> int:
    """Measure, print, and say whether the limits hold."""
    register_resolvers()
    held = True
    for model, limit in LIMITS.items():
        config = configuration(model)
        by_hand(config)  # the first of each also warms up caches
        project(config)
        plain, ours = [], []
        for _ in range(pairs):
            plain.append(by_hand(config))
            ours.append(project(config))
        best = min(ours) / min(plain)
        median = statistics.median(b / a for a, b in zip(plain, ours, strict=True))
        held &= best <= limit
        print(
            f"{model:6} project / hand-written loop: {best:.2f} best against best, "
            f"{median:.2f} median of {pairs} pairs; limit {limit}"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
