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
    "model=mlp",
    "data.image_size=8",
    "data.batch_size=64",
    "+data.augment.crop._target_=my_project.data.augment.RandomCrop",
    "+data.augment.crop.padding=1",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=2",
    "logger=csv",
    "callbacks=[checkpoint]",
    f"callbacks.checkpoint.last_every_n_steps={STEPS_BETWEEN_SAVES}",
    "+callbacks.fault._target_=faults.Fault",
    "test=false",
)
RANKS = {"single": 1, "ddp": 2, "fsdp": 2, "pipeline": 2}
KINDS = (
    "rank killed",
    "command killed",
    "killed while saving",
    "SIGTERM",
    "cut short",
    "full disk",
)
NOT_SINGLE = "command killed"  # it is the rank


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
        super().__init__(folder, str(TRAIN), *overrides, OMP_NUM_THREADS="1")

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

    def send(self, rank: int, number: int) -> None:
        """Send a rank a signal."""
        with suppress(ProcessLookupError):
            os.kill(int((self.folder / f"pid-{rank}").read_text()), number)

    def limit_files(self, rank: int) -> None:
        """Let a rank write no large file any more, as on a full disk."""
        pid = int((self.folder / f"pid-{rank}").read_text())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))

    def said(self) -> str:
        """What it has printed."""
        return self.stdout.read_text() + self.stderr.read_text()


class Injection:
    """One run that something happens to; the moment is drawn.

    Args:
        strategy: Its strategy.
        kind: One of `KINDS`.
        draw: Where the moment comes from.
        folder: An empty folder.
    """

    def __init__(self, strategy: str, kind: str, draw: random.Random, folder: Path) -> None:
        folder.mkdir()
        self.strategy = strategy
        self.kind = kind
        self.folder = folder
        self.step = draw.randrange(1, STEPS)
        self.delay = draw.uniform(0, SECONDS_OF_A_STEP)
        self.rank = draw.randrange(RANKS[strategy])
        self.save = draw.randrange(1, STEPS // STEPS_BETWEEN_SAVES)
        self.share = draw.random()

    def inject(self, bytes_of_a_file: int) -> str | None:
        """Run until it happens, and make sure that it did; return what went wrong."""
        saving = self.folder / "die-while-saving"
        if self.kind == "killed while saving":
            saving.write_text(f"{self.save} {int(self.share * bytes_of_a_file)}")
        self.command = command = Run(self.folder, *TASK, f"strategy={self.strategy}")
        if self.kind == "killed while saving":
            status = command.status()
            saving.unlink()
            return None if status else f"status {status}"
        command.wait_for_step(self.step)
        time.sleep(self.delay)
        if self.kind == "full disk":
            for rank in range(RANKS[self.strategy]):
                command.limit_files(rank)
        elif self.kind == "SIGTERM":
            command.send(self.rank, signal.SIGTERM)
        elif self.kind == "command killed":
            command.kill()
        else:
            command.send(self.rank, signal.SIGKILL)
        status = command.status()
        if self.kind == "cut short" and (newest := newest_checkpoint(self.run)[0]):
            os.truncate(newest, int(self.share * newest.stat().st_size))
        # 0: the run was at its end.
        if status is None or (self.kind == "SIGTERM" and status not in (0, 143)):
            return f"status {status}"
        return None

    def lost_steps(self) -> int:
        """How many are to be made again."""
        newest = newest_checkpoint(self.run)[0]
        saved = torch.load(newest, weights_only=True)["global_step"] if newest else 0
        return max(0, _step_in(self.folder) - saved)

    def resumed_as(self, reference: Path) -> str | None:
        """Resume it, and say what differs from the run that nothing happened to."""
        self.command = Run(self.folder, "resume=last")
        status = self.command.status()
        if status != 0:
            return f"resume=last ended with {status}"
        if len(list(self.folder.glob("runs/*/*"))) != 1:
            return "there is a second run directory"
        if column(self.run, "train/loss") != column(reference, "train/loss"):
            return "another curve"
        ours, theirs = weights(self.run), weights(reference)
        same = all(torch.equal(ours[name], theirs[name]) for name in theirs)
        return None if same else "other weights"

    @property
    def run(self) -> Path:
        """The run directory."""
        return next(self.folder.glob("runs/*/*"))


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

    kinds = [kind for kind in KINDS if not (kind == NOT_SINGLE and strategy == "single")]
    # So that a few for each strategy are all kinds in all.
    first = 2 * list(RANKS).index(strategy)
    lost, wrongs = [], 0
    for number in range(injections):
        kind = kinds[(first + number) % len(kinds)]
        draw = random.Random(f"{seed} {strategy} {number}")
        injection = Injection(strategy, kind, draw, root / f"{strategy}-{number}")
        wrong = injection.inject(bytes_of_a_file)
        lost.append(injection.lost_steps())
        if wrong := wrong or injection.resumed_as(reference):
            wrongs += 1
            print(f"\n{strategy} {number}, {kind}, at step {injection.step}: {wrong}")
            print(injection.command.said())
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
