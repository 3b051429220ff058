"""Whether averaging helps: test accuracy on real digits with and without, over several seeds.

Each seed trains the same network on the same split six times: with the schedule that comes by
default, and with a constant learning rate; each as it is, with callbacks=swa from three quarters of
the run, and with callbacks=ema. What is tested without an average is the best checkpoint by
validation, as in every run.

    python benchmarks/swa.py [SEEDS]

It prints means, spreads and how often an average was better; there is nothing to pass or fail.
"""

import json
import statistics
import sys

from baked import folder_for_runs, train

TASK = ("model=lenet", "data=digits", "logger=csv", "trainer.accelerator=cpu")
ROWS = {
    "cosine": ("callbacks=[checkpoint]",),
    "cosine, swa": ("callbacks=[checkpoint,swa]",),
    "cosine, ema": ("callbacks=[checkpoint,ema]", "callbacks.ema.decay=0.99"),
    "constant": ("callbacks=[checkpoint]", "scheduler=none"),
    "constant, swa": ("callbacks=[checkpoint,swa]", "scheduler=none"),
    "constant, ema": ("callbacks=[checkpoint,ema]", "callbacks.ema.decay=0.99", "scheduler=none"),
}


def accuracy(seed: int, *overrides: str) -> float:
    """Test accuracy of one run, in percent."""
    run = train(*TASK, f"seed={seed}", *overrides)
    metrics = json.loads((run / "metrics.json").read_text())
    return 100 * float(metrics["test/acc"])


def main(seeds: int = 10) -> int:
    """Train every row with every seed, and print."""
    with folder_for_runs():
        results = {
            name: [accuracy(seed, *overrides) for seed in range(seeds)]
            for name, overrides in ROWS.items()
        }
    print(f"test accuracy in percent over {seeds} seeds")
    print("                 mean  deviation    min    max   against without: mean   better  worse")
    for name, values in results.items():
        without = results[name.partition(",")[0]]
        gains = [value - other for value, other in zip(values, without, strict=True)]
        print(
            f"{name:15}{statistics.mean(values):7.2f}{statistics.stdev(values):11.2f}"
            f"{min(values):7.2f}{max(values):7.2f}{statistics.mean(gains):24.2f}"
            f"{sum(gain > 0 for gain in gains):9}{sum(gain < 0 for gain in gains):7}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
