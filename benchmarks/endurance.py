"""What grows in a long life: a sweep of many short jobs, and one run of many steps.

Memory, open files and threads of the command, which is the sweep's parent or the run's agent, and
of all its processes, early and at the end.

    python benchmarks/endurance.py [JOBS] [STEPS]

Exit status 1 if memory grew by more than a tenth, or if files or threads grew at all.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from baked import PROJECT

TINY = ("model=mlp", "data.image_size=8", "callbacks=[]", "logger=csv", "test=false")
GROWTH = 1.1


class Held(NamedTuple):
    """What a command and its processes hold."""

    megabytes: float
    of_all: float
    files: int
    threads: int


def held(pid: int) -> Held:
    """By the command itself; memory of all of its processes, too."""
    memory = [megabytes(process) for process in family(pid)]
    proc = Path(f"/proc/{pid}")
    return Held(memory[0], sum(memory), *(len(list((proc / part).iterdir())) for part in PARTS))


PARTS = ("fd", "task")


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(process for child in children for process in family(child))]


def megabytes(pid: int) -> float:
    """Resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def watched(*overrides: str, early: str, late: str) -> tuple[Held, Held]:
    """Run a command, and look at it at two lines of what it prints."""
    words = [sys.executable, "-u", str(PROJECT / "train.py"), *TINY, *overrides]
    seen: dict[str, Held] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as running,
    ):
        assert running.stdout is not None
        for line in running.stdout:
            for mark in (early, late):
                if line.startswith(mark) and mark not in seen:
                    seen[mark] = held(running.pid)
    if running.returncode or len(seen) != 2:
        raise SystemExit(f"{' '.join(words)}: ended with {running.returncode}, at {list(seen)}")
    return seen[early], seen[late]


def sampled(*overrides: str) -> tuple[Held, Held]:
    """Run a command, and look at it every second: after a fifth of its steps, and at the end."""
    words = [sys.executable, str(PROJECT / "train.py"), *TINY, *overrides]
    samples = []
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL) as running,
    ):
        while running.poll() is None:
            if list(Path(folder).glob("runs/*/*/metrics.csv")):
                try:
                    samples.append(held(running.pid))
                except FileNotFoundError:  # one of them has ended meanwhile
                    continue
            time.sleep(1)
    if running.returncode or len(samples) < 10:
        raise SystemExit(f"{' '.join(words)}: ended with {running.returncode}")
    # The last one may have seen ranks go.
    return samples[len(samples) // 5], samples[-3]


def main() -> int:
    """Measure both, print, and say whether the limits hold."""
    given = [int(word) for word in sys.argv[1:]] + [0, 0]
    jobs, steps = given[0] or 200, given[1] or 20_000
    sweep = watched(
        "-m", f"seed=range(0,{jobs})", "strategy=ddp", "trainer.devices=2",
        "trainer.max_epochs=1", "trainer.limit_train_batches=2",
        early=f"job {jobs // 10} of {jobs}", late=f"job {jobs} of {jobs}",
    )  # fmt: skip
    run = sampled(
        "strategy=ddp", "trainer.devices=2", "data.batch_size=16", f"trainer.max_steps={steps}",
        "trainer.max_epochs=-1",
    )  # fmt: skip
    print("                              MB       MB of all    files    threads")
    failed = False
    for name, (early, late) in ((f"{jobs} jobs", sweep), (f"{steps} steps", run)):
        for when, what in (("early", early), ("end", late)):
            print(
                f"{name:>14} {when:>6} {what.megabytes:10.0f} {what.of_all:12.0f} "
                f"{what.files:10} {what.threads:10}"
            )
        grown = late.megabytes > early.megabytes * GROWTH or late.of_all > early.of_all * GROWTH
        failed |= grown or late.files > early.files or late.threads > early.threads
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
