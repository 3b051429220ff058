"""Kills training runs in every way, goes on with `resume=last`, and compares what comes out.

Each strategy is injured many times, at moments drawn from a seed: a random rank is killed; the
command itself is killed; the first rank is killed in the middle of writing a checkpoint, after a
random number of bytes; a random rank is sent SIGTERM; the newest checkpoint of a killed run is cut
short; the disk is full for a while. Then `python train.py resume=last` must complete, with the
weights and the curve of a run that nothing happened to, bit for bit.

    python benchmarks/faults.py [INJECTIONS] [SEED] [STRATEGY ...]

The table: how many injections, how many runs came to the right end, how many steps had to be made
again (what was made between the last checkpoint and the fault), and how many ended otherwise.
Exit status 1 if any did. The full disk is a limit on the size of files.
"""

import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from baked import TRAIN, folder_for_runs, print_head, print_row
from lightning.pytorch import Callback
from processes import Command, end

from onecurve.checkpoint.file import newest_checkpoint
from onecurve.testing.runs import column

STEPS = 42
STEPS_BETWEEN_SAVES = 3
SECONDS_AT_MOST = 120
# What a file may grow to once the disk is full: checkpoints are larger, metrics.csv is not.
FILE_BYTES = 60_000
# A step takes some hundredths of a second: a fault may be anywhere in it.
SECONDS_OF_A_STEP = 0.05
TASK = (
    *("model=mlp", "data.image_size=8", "data.batch_size=64", "trainer.accelerator=cpu"),
    *("trainer.max_epochs=2", "logger=csv", "callbacks=[checkpoint]", "test=false"),
    "+data.augment.crop._target_=my_project.data.augment.RandomCrop",
    "+data.augment.crop.padding=1",
    f"callbacks.checkpoint.last_every_n_steps={STEPS_BETWEEN_SAVES}",
    "+callbacks.fault._target_=faults.Fault",
)
RANKS = {"single": 1, "ddp": 2, "fsdp": 2, "pipeline": 2}
KINDS = (
    *("rank killed", "command killed", "killed while saving"),
    *("SIGTERM", "cut short", "full disk"),
)


class Fault(Callback):
    """Tells the outside how far each rank is, and lets the first die while saving if it is to."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Say which process this rank is."""
        torch.set_num_threads(1)
        if trainer.is_global_zero and Path("die-while-saving").exists():
            save, after = map(int, Path("die-while-saving").read_text().split())
            _die_while_writing(save, after)
        Path(f"pid-{trainer.global_rank}").write_text(str(os.getpid()))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        """Say which step begins."""
        if trainer.is_global_zero:
            Path("step").write_text(str(trainer.global_step))


def _die_while_writing(save: int, after: int) -> None:
    """Kill this process in the middle of its `save`-th checkpoint, `after` bytes into the file."""
    saves = 0
    save_to = torch.save

    class Dying:
        def __init__(self, file: Any) -> None:
            self.file = file
            self.left = after

        def write(self, data: bytes) -> int:
            self.left -= len(data)
            if self.left < 0:
                self.file.write(bytes(data)[: self.left])
                self.file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return int(self.file.write(data))

        def flush(self) -> None:
            self.file.flush()

    def save_and_die(checkpoint: Any, file: Any) -> None:
        nonlocal saves
        is_file = hasattr(file, "name")  # what is saved to memory is only looked at
        saves += is_file
        save_to(checkpoint, Dying(file) if is_file and saves == save else file)

    torch.save = save_and_die


class Run(Command):
    """`python train.py` in a process of its own; its ranks leave in its folder how far they are."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        for name in ("step", "pid-0", "pid-1"):
            (folder / name).unlink(missing_ok=True)
        self.folder = folder
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        super().__init__(folder, str(TRAIN), *overrides, **environment)

    def status(self) -> int | None:
        """The exit status, or the negative number of a signal; None, and it is ended, if late."""
        try:
            return self.wait(SECONDS_AT_MOST)
        except subprocess.TimeoutExpired:
            end(self)
            return None

    def wait_for_step(self, step: int) -> None:
        """Wait until a step has begun, or the process has ended."""
        while _step_in(self.folder) < step and self.poll() is None:
            time.sleep(0.0002)

    def pid_of(self, rank: int) -> int:
        """The process of a rank."""
        return int((self.folder / f"pid-{rank}").read_text())

    def said(self) -> str:
        """What it has printed."""
        return self.out.read_text() + self.err.read_text()


def inject(
    strategy: str, kind: str, draw: random.Random, folder: Path, bytes_of_a_file: int
) -> tuple[Run, str]:
    """A run to which a fault happens, at a moment that is drawn; and what else went wrong."""
    step, delay = draw.randrange(1, STEPS), draw.uniform(0, SECONDS_OF_A_STEP)
    rank, share = draw.randrange(RANKS[strategy]), draw.random()
    saving = folder / "die-while-saving"
    if kind == "killed while saving":
        save = draw.randrange(1, STEPS // STEPS_BETWEEN_SAVES)
        saving.write_text(f"{save} {int(share * bytes_of_a_file)}")
        run = Run(folder, *TASK, f"strategy={strategy}")
        status = run.status()
        saving.unlink()
        return run, "" if status else f"status {status}"
    run = Run(folder, *TASK, f"strategy={strategy}")
    run.wait_for_step(step)
    time.sleep(delay)
    with suppress(ProcessLookupError):  # the run was at its end
        if kind == "full disk":
            for each in range(RANKS[strategy]):
                resource.prlimit(run.pid_of(each), resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        elif kind == "command killed":
            run.kill()
        else:
            os.kill(run.pid_of(rank), signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
    status = run.status()
    newest = newest_checkpoint(directory(folder))[0]
    if kind == "cut short" and newest:
        os.truncate(newest, int(share * newest.stat().st_size))
    # 0: it was at its end.
    is_wrong = status is None or (kind == "SIGTERM" and status not in (0, 143))
    return run, f"status {status}" if is_wrong else ""


def lost_steps(folder: Path) -> int:
    """How many are to be made again."""
    newest = newest_checkpoint(directory(folder))[0]
    saved = torch.load(newest, weights_only=True)["global_step"] if newest else 0
    return max(0, _step_in(folder) - saved)


def resume(folder: Path, reference: Path) -> tuple[Run, str]:
    """Resume a run, and say what differs from the one that nothing happened to."""
    run = Run(folder, "resume=last")
    status = run.status()
    if status != 0:
        return run, f"resume=last ended with {status}"
    if len(list(folder.glob("runs/*/*"))) != 1:
        return run, "there is a second run directory"
    resumed = directory(folder)
    if column(resumed, "train/loss") != column(reference, "train/loss"):
        return run, "another curve"
    ours, theirs = weights(resumed), weights(reference)
    same = all(torch.equal(ours[name], theirs[name]) for name in theirs)
    return run, "" if same else "other weights"


def directory(folder: Path) -> Path:
    """The run directory in a folder."""
    return next(folder.glob("runs/*/*"))


def weights(run: Path) -> dict[str, Any]:
    """The network's weights at the end of a run."""
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    state: dict[str, Any] = checkpoint["state_dict"]
    return state


def injure(strategy: str, injections: int, seed: int, root: Path) -> bool:
    """Do all injections of a strategy, and print its row; whether each run came out right."""
    whole = root / strategy
    whole.mkdir()
    undisturbed = Run(whole, *TASK, f"strategy={strategy}")
    if undisturbed.status() != 0:
        sys.exit(undisturbed.said())
    (reference,) = whole.glob("runs/*/*")
    assert len(column(reference, "train/loss")) == STEPS
    bytes_of_a_file = (reference / "checkpoints/last.ckpt").stat().st_size

    # Under `single` the command is the rank.
    kinds = [kind for kind in KINDS if (strategy, kind) != ("single", "command killed")]
    # So that a few for each strategy are all kinds in all.
    first = 2 * list(RANKS).index(strategy)
    lost, wrongs = [], 0
    for number in range(injections):
        kind = kinds[(first + number) % len(kinds)]
        draw = random.Random(f"{seed} {strategy} {number}")
        folder = root / f"{strategy}-{number}"
        folder.mkdir()
        run, wrong = inject(strategy, kind, draw, folder, bytes_of_a_file)
        lost.append(lost_steps(folder))
        if not wrong:
            run, wrong = resume(folder, reference)
        if wrong:
            wrongs += 1
            print(f"\n{strategy} {number}, {kind}: {wrong}\n{run.said()}")
    median = f"{statistics.median(lost):g}"
    print_row(strategy, injections, injections - wrongs, median, max(lost), wrongs)
    return not wrongs


def _step_in(folder: Path) -> int:
    """The step that began last; 0 before the first."""
    try:
        return int((folder / "step").read_text() or 0)
    except FileNotFoundError:
        return 0


def main(injections: int = 50, seed: int = 0, *strategies: str) -> int:
    """Injure every strategy; 1 if any run came out wrong."""
    # Those of processes that were killed are cleaned up by Python at the end, and it says so.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    with folder_for_runs() as root:
        print_head("strategy", "injections", "survived", "steps made again", "most", "wrong")
        right = [injure(name, injections, seed, root) for name in strategies or RANKS]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), *sys.argv[3:]))
