"""One epoch of 60,000 28 x 28 images: the project's training against hand-written loops.

All train the same network with AdamW at batch size 128 on the same uint8 images in memory, on the
CPU. The project runs with everything that it switches on by default: checkpoints, progress,
learning-rate monitor, CSV and TensorBoard loggers, the loss logged at every step, a fused
optimizer. One loop is as people write it, with PyTorch's default optimizer; the other has the same
fused one. What is timed is one epoch from its first batch to the end of training, checkpoint
included. They alternate in one process, so that a machine that slows down slows all.

    python benchmarks/epoch.py [ROUNDS]

Prints, for each network and loop, the median of the ratios round by round: of the time that passed,
and of the processor's (which other work on a machine changes less). Exit status 1 if a ratio of
time that passed is above its limit.
"""

import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from lightning.pytorch import Callback
from omegaconf import OmegaConf

from onecurve.app.command.resolvers import register_resolvers
from onecurve.app.run.stored import for_ranks
from onecurve.launch.context import RunContext
from onecurve.launch.process import log_to_file
from onecurve.launch.worker import resolved

PROJECT = Path(__file__).resolve().parent.parent / "build" / "my-project"
CONFIGS = PROJECT / "configs"
# Against the loop with PyTorch's default optimizer, and against that with the fused one.
LIMITS = {"lenet": {"default": 1.0, "fused": 1.1}, "mlp": {"default": 1.0, "fused": 1.25}}
# LeNet-5 reads 28 x 28 images in a margin of two black pixels.
IMAGE_SIZE = {"lenet": 32, "mlp": 28}
RUN_DIRECTORY = "/run-directory"


class Seconds(NamedTuple):
    """How long something took."""

    passed: float
    processor: float


def now() -> Seconds:
    """A point in time."""
    return Seconds(time.perf_counter(), time.process_time())


def since(before: Seconds) -> Seconds:
    """What has gone by."""
    return Seconds(*(later - earlier for later, earlier in zip(now(), before, strict=True)))


class Stopwatch(Callback):
    """Times training from the first batch to the end."""

    seconds: "Seconds"

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first batch is about to be read."""
        self.started = now()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """All other callbacks have seen the last epoch end."""
        Stopwatch.seconds = since(self.started)


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
        return for_ranks(compose("train", overrides))


def project(config: dict[str, Any]) -> Seconds:
    """Seconds of one epoch by the project."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        placed = json.loads(json.dumps(config).replace(RUN_DIRECTORY, folder))
        with log_to_file(Path(folder), rank=0):
            resolved(f"{PROJECT / 'train.py'}:train.in_rank")(placed, RunContext(Path(folder)))
    return Stopwatch.seconds


def by_hand(config: dict[str, Any], fused: bool | None) -> Seconds:
    """Seconds of one epoch by the shortest correct loop."""
    cfg = OmegaConf.create(config)
    data = instantiate(cfg.data)
    data.setup("fit")
    dataset = data.datasets[0]
    images, labels = dataset.images, dataset.labels
    network = instantiate(cfg.model)
    options = {key: cfg.optimizer[key] for key in ("lr", "weight_decay", "eps")}
    optimizer = torch.optim.AdamW(network.parameters(), fused=fused, **options)
    mean, std = cfg.data.mean[0], cfg.data.std[0]
    started = now()
    for index in torch.randperm(len(images)).split(cfg.data.batch_size):
        inputs = (images[index].float() / 255 - mean) / std
        loss = F.cross_entropy(network(inputs), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return since(started)


def main(rounds: int) -> int:
    """Measure, print, and say whether the limits hold."""
    register_resolvers()
    held = True
    for model, limits in LIMITS.items():
        config = configuration(model)
        loops = {
            "default": partial(by_hand, config, None),
            "fused": partial(by_hand, config, True),
            "project": partial(project, config),
        }
        for loop in loops.values():  # the first of each also warms up caches
            loop()
        taken = [{name: loop() for name, loop in loops.items()} for _ in range(rounds)]
        for name, limit in limits.items():
            ratios = [
                [ours / theirs for ours, theirs in zip(each["project"], each[name], strict=True)]
                for each in taken
            ]
            passed, processor = (statistics.median(column) for column in zip(*ratios, strict=True))
            held &= passed <= limit
            print(
                f"{model:6} project / hand-written loop, {name:7} optimizer: {passed:.2f} of the "
                f"time, {processor:.2f} of the processor's; medians of {rounds}, limit {limit:.2f}"
            )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
