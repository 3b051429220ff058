"""From the command to the first training step: where the time goes.

Starts `python train.py` as a user does, several times, and notes when each phase ends: Python and
Hydra are up and the configuration is composed; torch and Lightning are imported; the data are in
memory; the network is built; the first training step is done. Beside it, in the same rounds, what
cannot be avoided, `python -c "import lightning.pytorch, torchvision"`, and `train.py --help`.

    python benchmarks/startup.py [ROUNDS]

Prints medians as shares of the whole and as ratios, which mean the same on any machine.
"""

import json
import statistics
import subprocess
import sys
import time

from baked import TRAIN, folder_for_runs, print_head, print_row

PHASES = ("compose", "imports", "data", "model", "first step")

# Runs in the process that is measured: wraps the functions at whose borders the phases end.
HARNESS = """
import json, os, runpy, sys, time
marks = []
def mark(name): marks.append((name, time.time()))
def wrap(module, name, before=None, after=None):
    function = getattr(module, name)
    def wrapped(*arguments, **options):
        if before: mark(before)
        try:
            return function(*arguments, **options)
        finally:
            if after: mark(after)
    setattr(module, name, wrapped)

from onecurve.app.run import record
start = record.start
def started(*arguments, **options):
    start(*arguments, **options)
    mark("compose")
    import onecurve.app.run.script  # and Lightning, as a rank does before the script's function
    from onecurve.app.run import instantiate
    from my_project.data.images import ImageDataModule
    from lightning.pytorch.strategies import Strategy
    from onecurve.strategies.strategy import OneCurve
    mark("imports")
    wrap(ImageDataModule, "setup", before="data starts", after="data")
    wrap(instantiate, "build_task", before="model starts", after="model")
    optimizer_step = Strategy.optimizer_step
    def first(*arguments, **options):
        result = optimizer_step(*arguments, **options)
        mark("first step")
        print("MARKS" + json.dumps(marks), flush=True)
        os._exit(0)
    Strategy.optimizer_step = first
record.start = started
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def timed(*arguments: str) -> tuple[float, str, float]:
    """Wall seconds of Python with arguments, its output, and when it was started."""
    started = time.time()
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.time() - started, done.stdout, started


def phases(output: str, started: float) -> dict[str, float]:
    """Seconds of each phase. Data and network are built inside of what follows the imports."""
    line = next(line for line in output.splitlines() if line.startswith("MARKS"))
    at = dict(json.loads(line.removeprefix("MARKS")))
    data = at["data"] - at["data starts"]
    model = at["model"] - at["model starts"]
    return {
        "compose": at["compose"] - started,
        "imports": at["imports"] - at["compose"],
        "data": data,
        "model": model,
        "first step": at["first step"] - at["imports"] - data - model,
    }


def main(rounds: int = 3) -> None:
    """Measure in turn, and print."""
    found: dict[str, list[float]] = {name: [] for name in (*PHASES, "imports alone", "--help")}
    for _ in range(rounds + 1):
        _, output, started = timed("-c", HARNESS, str(TRAIN))
        stack = "import lightning.pytorch, torchvision"
        found["imports alone"].append(timed("-c", stack)[0])
        found["--help"].append(timed(str(TRAIN), "--help")[0])
        for name, seconds in phases(output, started).items():
            found[name].append(seconds)
    # The first round fills the caches of the file system.
    median = {name: statistics.median(values[1:]) for name, values in found.items()}
    whole = sum(median[name] for name in PHASES)
    print_head("phase", "share of the time to the end of the first training step")
    for name in PHASES:
        print_row(name, f"{median[name] / whole:.0%}")
    alone = whole / median["imports alone"]
    print(f"\nwhole / importing lightning and torchvision alone: {alone:.2f}")
    print(f"--help / whole: {median['--help'] / whole:.2f}")


if __name__ == "__main__":
    with folder_for_runs():
        main(*map(int, sys.argv[1:]))
