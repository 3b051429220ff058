"""What a job of a sweep costs beside its training: six one-epoch jobs of two processes each.

One `python train.py -m`, and beside it the same jobs as six commands. A job costs the time from its
first line to that of the next job, less the time inside fit (`seconds` in its metrics.json); the
first job of the sweep, which waits for the imports, is shown apart.

    python benchmarks/sweep.py

Exit status 1 if a job after the first costs more than 1.5 s, or if a sweep is not faster.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from baked import TRAIN, print_head, print_row

JOBS = 6
MOST = 1.5
JOB = ("strategy=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "trainer.max_epochs=1")
COMMAND = (sys.executable, "-u", str(TRAIN), *JOB)


def beside_fit(folder: Path, marks: list[float]) -> list[float]:
    """Seconds from mark to mark less those of training, of each run below a folder."""
    runs = sorted(folder.glob("runs/**/metrics.json"))  # oldest first
    facts = [json.loads(path.read_text()) for path in runs]
    if [fact["status"] for fact in facts] != ["finished"] * JOBS:
        raise SystemExit(f"{folder}: not all jobs have finished")
    spans = [after - before for before, after in pairwise(marks)]
    return [span - fact["seconds"] for span, fact in zip(spans, facts, strict=True)]


def in_a_sweep(folder: Path) -> list[float]:
    """What each job costs beside its training; the report at the end is not part of the last."""
    seeds = f"seed=range({JOBS})"
    begun = [time.perf_counter()]
    with subprocess.Popen(
        [*COMMAND, "-m", seeds], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as sweep:
        assert sweep.stdout is not None
        for line in sweep.stdout:
            number = len(begun)
            if line.startswith((f"job {number} of {JOBS}: seed=", "Sweep, ")):
                begun.append(time.perf_counter())
    # The first job has the start of the command in it.
    return beside_fit(folder, [begun[0], *begun[2:]])


def one_by_one(folder: Path) -> list[float]:
    """The same as commands of their own."""
    marks = [time.perf_counter()]
    for seed in range(JOBS):
        typed = [*COMMAND, f"seed={seed}"]
        subprocess.run(typed, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        marks.append(time.perf_counter())
    return beside_fit(folder, marks)


def main() -> int:
    """Measure both, print, and say whether the limit holds."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        sweep, alone = in_a_sweep(Path(first)), one_by_one(Path(second))
    later, other = statistics.mean(sweep[1:]), statistics.mean(alone[1:])
    print_head("seconds beside training", "the first job", "the others (mean)")
    print_row("python train.py -m", f"{sweep[0]:.2f}", f"{later:.2f}")
    print_row(f"{JOBS} times python train.py", f"{alone[0]:.2f}", f"{other:.2f}")
    print(f"of the limit of {MOST} s: {later / MOST:.2f}; of a command's own: {later / other:.2f}")
    return int(later > MOST or later >= other)


if __name__ == "__main__":
    sys.exit(main())
