"""What callbacks cost: the default ones, each of the others, and all of them, against none.

Runs with and without take turns, so that a machine that is slow for a while is so for both. Two
figures a row: what a step within an epoch takes more than without callbacks, in percent; and what
else an epoch costs (validation with its displays, checkpoints), in steps without callbacks.

    python benchmarks/callbacks.py [TURNS]

Exit status 1 if the default callbacks cost more than 5 % of a step of ResNet-18 on 32 x 32 images.
"""

import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from baked import folder_for_runs, train
from lightning.pytorch import Callback

MOST = 5.0
ALL = (
    "checkpoint,lr_monitor,progress,model_summary,tensorboard,throughput,device_stats,nan_guard,"
    "swa,ema,early_stopping,timer"
)
ROWS = {
    "default": "checkpoint,lr_monitor,progress,model_summary",
    "progress": "progress",
    "throughput": "throughput",
    "device_stats": "device_stats",
    "nan_guard": "nan_guard",
    "swa": "swa",
    "ema": "ema",
    "tensorboard": "tensorboard",
    "all of them": ALL,
}
COMMON = (
    "data=synthetic",
    "data.image_size=32",
    "data.num_val=256",
    "data.num_test=64",
    "trainer.accelerator=cpu",
    "test=false",
    "logger=csv",
)
CLOCK = "+callbacks.clock._target_=callbacks.Clock"
LENET = ("model=lenet", "data.batch_size=64", "data.num_samples=12864", "trainer.max_epochs=5")
# More than 100 steps, so that histograms are among what is measured.
RESNET = (
    "model=resnet",
    "model.name=resnet18",
    "model.small_images=true",
    "data.channels=3",
    "data.batch_size=8",
    "data.num_samples=968",
    "trainer.max_epochs=1",
)


class Clock(Callback):
    """Notes when each step ended, and the whole fit."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, float]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first line."""
        self.ends.append((-1, time.perf_counter()))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """A line a step."""
        self.ends.append((trainer.current_epoch, time.perf_counter()))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The last line, when every other callback has had its say."""
        self.ends.append((-1, time.perf_counter()))
        Path("ends").write_text("\n".join(f"{epoch} {end}" for epoch, end in self.ends))


class Times(NamedTuple):
    """Of one run, in seconds."""

    step: float
    """The mean from the end of a step to the end of the next one in the same epoch."""
    rest_of_epoch: float
    """All else, divided by the number of epochs."""


def measure(callbacks: str, *overrides: str) -> Times:
    """Train once."""
    train(*COMMON, *overrides, f"callbacks=[{callbacks}]", CLOCK)
    lines = [line.split() for line in Path("ends").read_text().splitlines()]
    ends = [(int(epoch), float(end)) for epoch, end in lines]
    steps = [
        after[1] - before[1]
        for before, after in itertools.pairwise(ends)
        if before[0] == after[0] >= 0
    ]
    rest = ends[-1][1] - ends[0][1] - sum(steps)
    return Times(statistics.mean(steps), rest / (max(epoch for epoch, _ in ends) + 1))


def compare(network: str, rows: dict[str, str], turns: int, *overrides: str) -> dict[str, float]:
    """Every row once a turn, after a run without callbacks.

    Returns:
        What a row adds to a step, in percent.
    """
    added: dict[str, list[float]] = {name: [] for name in rows}
    rest: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(turns):
        none = measure("", *overrides)
        for name, callbacks in rows.items():
            times = measure(callbacks, *overrides)
            added[name].append(100 * (times.step / none.step - 1))
            rest[name].append((times.rest_of_epoch - none.rest_of_epoch) / none.step)
    for name in rows:
        low, high = min(added[name]), max(added[name])
        print(
            f"{network:11}{name:15}{statistics.median(added[name]):8.1f} % "
            f"({low:.1f} to {high:.1f}){statistics.median(rest[name]):12.1f} steps",
            flush=True,
        )
    return {name: statistics.median(values) for name, values in added.items()}


def main(turns: int = 3) -> int:
    """Measure both networks, and compare the default callbacks with what they may cost."""
    with folder_for_runs():
        print("network    callbacks      added to a step         added to an epoch's end")
        compare("LeNet-5", ROWS, turns, *LENET)
        few = {name: ROWS[name] for name in ("default", "tensorboard", "all of them")}
        added = compare("ResNet-18", few, turns, *RESNET)
    return 0 if added["default"] <= MOST else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
