"""What saving costs the training loop: in the foreground, in the background, and sharded.

A network of more than 100 MB of weights is trained on the CPU with AdamW, so that a checkpoint is
three times as large. Windows of a few steps with one save in the middle and windows without take
turns in one run; their difference is what a save costs, and it is given in steps of that run.

    python benchmarks/checkpoint.py [PAIRS]

Exit status 1 if a save in the background holds up training more than one in the foreground.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from baked import folder_for_runs, train
from lightning.pytorch import Callback

STEPS_IN_A_WINDOW = 6
SAVE_AT = 2
WIDTH = 2800
TASK = (
    "model=mlp",
    f"model.hidden=[{WIDTH},{WIDTH},{WIDTH},{WIDTH}]",
    "data=synthetic",
    "data.image_size=32",
    "data.batch_size=64",
    "data.num_val=64",
    "data.num_test=64",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.limit_val_batches=0",
    "scheduler=none",
    "test=false",
    "logger=csv",
    "callbacks=[checkpoint]",
    "callbacks.checkpoint.monitor=null",
    "callbacks.checkpoint.every_n_epochs=null",
    "callbacks.checkpoint.every_n_train_steps=1000000",
    "+callbacks.clock._target_=checkpoint.Clock",
)
ROWS = {
    "single": ("strategy=single",),
    "fsdp": ("strategy=fsdp", "trainer.devices=2"),
    "fsdp, sharded": ("strategy=fsdp", "trainer.devices=2", "checkpoint.format=sharded"),
}


class Clock(Callback):
    """Saves in every second window, and notes when each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """Runs before the checkpoint callback, which is always the last."""
        window, step = divmod(trainer.global_step, STEPS_IN_A_WINDOW)
        saves = window % 2 == 1 and step == SAVE_AT
        trainer.checkpoint_callback.last_every_n_steps = trainer.global_step if saves else None
        self.ends.append(time.perf_counter())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the times down."""
        if trainer.is_global_zero:
            weights = sum(p.numel() * p.element_size() for p in pl_module.parameters())
            Path("weights").write_text(str(weights))
            Path("ends").write_text(" ".join(map(str, self.ends)))


class Cost(NamedTuple):
    """Medians of one run."""

    seconds_a_step: float
    steps_a_save: float


def measure(pairs: int, *overrides: str) -> Cost:
    """Train, with as many windows of each kind."""
    steps = 2 * (pairs + 1) * STEPS_IN_A_WINDOW
    train(*TASK, *overrides, f"data.num_samples={64 * (steps + 1)}")
    ends = list(map(float, Path("ends").read_text().split()))
    windows = [
        ends[start + STEPS_IN_A_WINDOW] - ends[start]
        for start in range(0, steps, STEPS_IN_A_WINDOW)
    ]
    # The first two are for warming up.
    without, with_save = windows[2::2], windows[3::2]
    step = statistics.median(without) / STEPS_IN_A_WINDOW
    longer = [b - a for a, b in zip(without, with_save, strict=True)]
    return Cost(step, statistics.median(longer) / step)


def main(pairs: int = 8) -> int:
    """Measure every row, print, and say whether the background is worth it."""
    held = True
    with folder_for_runs():
        print("                 MB of weights  a save costs: foreground  background")
        for name, overrides in ROWS.items():
            foreground = measure(pairs, *overrides, "checkpoint.async=false")
            background = measure(pairs, *overrides, "checkpoint.async=true")
            megabytes = int(Path("weights").read_text()) / 1e6
            held &= background.steps_a_save <= foreground.steps_a_save
            print(
                f"{name:17}{megabytes:13.0f}{foreground.steps_a_save:20.1f} steps"
                f"{background.steps_a_save:6.1f} steps",
                flush=True,
            )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
