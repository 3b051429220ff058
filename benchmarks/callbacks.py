"""What callbacks cost: the default ones, each of the others, and all of them, against none.

Within a run, windows of steps with the callbacks and windows without take turns: two runs of the
same kind differ by more than most callbacks cost. Two figures a row: what a step takes more with
them, in percent, the median over pairs of windows; and what else an epoch costs (validation with
its displays, checkpoints), in steps, beyond a run without callbacks.

    python benchmarks/callbacks.py

Exit status 1 if the default callbacks cost more than 5 % of a step of ResNet-18 on 32 x 32 images.
"""

import statistics
import sys
import time
from itertools import pairwise
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
CLOCK = ("+callbacks.clock._target_=callbacks.Clock",)
WINDOW = 10
LENET = ("model=lenet", "data.batch_size=64", "data.num_samples=12864")
# More than 200 steps, so that histograms are among what is measured.
RESNET = (
    "model=resnet",
    "model.name=resnet18",
    "model.small_images=true",
    "data.channels=3",
    "data.batch_size=8",
    "data.num_samples=1920",
)


class Clock(Callback):
    """Takes the other callbacks away for every second window, and notes when each step ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, float]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The library's own callbacks stay."""
        self.everybody = trainer.callbacks
        own = ("ResumeState", "PeakMemory", "StopOnSignal", "Clock")
        self.few = [each for each in self.everybody if type(each).__name__ in own]
        self.ends.append((-1, time.perf_counter()))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """A line a step: the window that it was in."""
        window = trainer.fit_loop.batch_idx // WINDOW
        self.ends.append((window, time.perf_counter()))
        following = (trainer.fit_loop.batch_idx + 1) // WINDOW
        is_last = trainer.fit_loop.batch_idx + 1 == trainer.num_training_batches
        trainer.callbacks = self.everybody if is_last or following % 2 == 0 else self.few

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The last line, when every other callback has had its say."""
        self.ends.append((-1, time.perf_counter()))
        Path("ends").write_text("\n".join(f"{window} {end}" for window, end in self.ends))


class Times(NamedTuple):
    """Of one run."""

    step: float
    """Median seconds of a step without callbacks."""
    added: list[float]
    """For each window with callbacks and the next one: how much longer a step is, in percent."""
    rest: float
    """Seconds between the last step of one window and the first of the next, over epochs."""


def measure(callbacks: str, epochs: int, *overrides: str) -> Times:
    """Train once."""
    train(*COMMON, *overrides, f"trainer.max_epochs={epochs}", f"callbacks=[{callbacks}]", *CLOCK)
    lines = [line.split() for line in Path("ends").read_text().splitlines()]
    ends = [(int(window), float(end)) for window, end in lines]
    windows: list[tuple[int, list[float]]] = []
    rest = 0.0
    for before, after in pairwise(ends):
        seconds = after[1] - before[1]
        if after[0] < 0 or before[0] < 0 or after[0] < before[0]:
            rest += seconds  # around an epoch
        elif windows and windows[-1][0] == after[0] == before[0]:
            windows[-1][1].append(seconds)
        else:
            windows.append((after[0], [seconds]))
    full = [(number, values) for number, values in windows if len(values) >= WINDOW - 1]
    added = [
        100 * (statistics.mean(with_them) / statistics.mean(without) - 1)
        for (number, with_them), (following, without) in pairwise(full)
        if number % 2 == 0 and following == number + 1
    ]
    step = statistics.median(statistics.mean(values) for number, values in full if number % 2 == 1)
    return Times(step, added, rest / epochs)


def compare(network: str, rows: dict[str, str], epochs: int, *overrides: str) -> dict[str, float]:
    """One run a row, and one without callbacks.

    Returns:
        What a row adds to a step, in percent.
    """
    none = measure("", epochs, *overrides)
    medians = {}
    for name, callbacks in rows.items():
        times = measure(callbacks, epochs, *overrides)
        medians[name] = statistics.median(times.added)
        low, _, high = statistics.quantiles(times.added, n=4)
        print(
            f"{network:11}{name:15}{medians[name]:8.1f} % ({low:.1f} to {high:.1f})"
            f"{(times.rest - none.rest) / none.step:12.1f} steps",
            flush=True,
        )
    return medians


def main() -> int:
    """Measure both networks, and compare the default callbacks with what they may cost."""
    with folder_for_runs():
        print("network    callbacks      added to a step (quartiles)   added to an epoch's end")
        compare("LeNet-5", {"none": "", **ROWS}, 5, *LENET)
        few = {name: ROWS[name] for name in ("default", "tensorboard", "all of them")}
        added = compare("ResNet-18", {"none": "", **few}, 1, *RESNET)
    return 0 if added["default"] <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
