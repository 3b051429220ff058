"""Kills training runs in every way, goes on with `resume=last`, and compares what comes out.

Each strategy is injured many times, at moments drawn from a seed: a random rank is killed; the
command itself is killed; the first rank is killed in the middle of writing a checkpoint, after a
random number of bytes; a random rank is sent SIGTERM; the newest checkpoint of a killed run is cut
short; the disk is full for a while. Then `python train.py resume=last` must complete, with the
weights and the curve of a run that nothing happened to, bit for bit.

    python benchmarks/faults.py [INJECTIONS] [SEED] [STRATEGY ...]

The table: how many injections, how many runs came to the right end, how many steps had to be made
again (what was made between the last checkpoint and the fault), and how many ended otherwise.
Exit status 1 if any did. The full disk is a small tmpfs where one can be mounted (by root), and a
limit on the size of files elsewhere.
"""

import os
import random
import resource
import signal
import statistics
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from baked import PROJECT, column, folder_for_runs, output_to, weights
from lightning.pytorch import Callback

from onecurve.checkpoint.file import newest_checkpoint
from onecurve.launch.forkserver import warm_up

STEPS = 42
STEPS_BETWEEN_SAVES = 3
SECONDS_AT_MOST = 120
# Room for three checkpoints and the rest.
DISK_BYTES = 24 << 20
# What a file may grow to where no tmpfs can be mounted: checkpoints are larger, metrics.csv is not.
FILE_BYTES = 60_000
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
            Path("step").write_bytes(struct.pack("i", trainer.global_step))


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
        saves += 1
        save_to(checkpoint, Dying(file) if saves == save else file)

    torch.save = save_and_die


class Command:
    """`python train.py` in a process forked from this one, which has imported everything."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        for name in ("step", "pid-0", "pid-1"):
            (folder / name).unlink(missing_ok=True)
        self.folder = folder
        self.pid = os.fork()
        self.status: int | None = None
        if self.pid == 0:
            _be_the_command(folder, overrides)

    def wait(self) -> int:
        """The exit status; a process that takes too long is ended, and that counts as -1."""
        deadline = time.monotonic() + SECONDS_AT_MOST
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.status is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.status = -1
        return self.status

    def ended(self) -> bool:
        """Whether it is over."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def wait_for_step(self, step: int) -> None:
        """Wait until a step has begun, or the process has ended."""
        while _step_in(self.folder) < step and not self.ended():
            time.sleep(0.0002)

    def send(self, rank: int, number: int) -> None:
        """Send a rank a signal."""
        with suppress(ProcessLookupError):
            os.kill(int((self.folder / f"pid-{rank}").read_text()), number)


def _be_the_command(folder: Path, overrides: tuple[str, ...]) -> None:
    from fuzz.command import end_as  # `folder_for_runs` has made the library's tests importable

    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        torch.set_num_threads(1)
        end_as(PROJECT / "train.py", overrides)
    except BaseException:
        traceback.print_exc()
    finally:  # else this process would unmount its parent's disk, if that is full
        os._exit(1)


class Result(NamedTuple):
    """What came of one injection."""

    lost_steps: int
    wrong: str | None
    """What is not as it should be."""


class Injection:
    """One run that something happens to.

    Args:
        strategy: Its strategy.
        kind: One of `KINDS`.
        draw: Where the moment comes from.
        folder: An empty folder.
        seconds_a_step: How long a step takes, roughly.
    """

    def __init__(
        self, strategy: str, kind: str, draw: random.Random, folder: Path, seconds_a_step: float
    ) -> None:
        self.strategy = strategy
        self.kind = kind
        self.folder = folder
        self.step = draw.randrange(1, STEPS)
        self.delay = draw.uniform(0, 2 * seconds_a_step)
        self.rank = draw.randrange(RANKS[strategy])
        self.save = draw.randrange(1, STEPS // STEPS_BETWEEN_SAVES)
        self.share = draw.random()

    def inject(self, bytes_of_a_file: int) -> str | None:
        """Run until it happens, and make sure that it did; return what went wrong."""
        if self.kind == "killed while saving":
            after = int(self.share * bytes_of_a_file)
            (self.folder / "die-while-saving").write_text(f"{self.save} {after}")
        command = Command(self.folder, *TASK, f"strategy={self.strategy}")
        if self.kind == "killed while saving":
            status = command.wait()
            (self.folder / "die-while-saving").unlink()
            return None if status not in (0, -1) else f"status {status}"
        command.wait_for_step(self.step)
        time.sleep(self.delay)
        if self.kind == "full disk":
            return self._fill_the_disk(command)
        if self.kind == "SIGTERM":
            command.send(self.rank, signal.SIGTERM)
            status = command.wait()
            # 0: the run was at its end.
            return None if status in (0, 143) else f"status {status} after SIGTERM"
        if self.kind == "command killed":
            os.kill(command.pid, signal.SIGKILL)
        else:
            command.send(self.rank, signal.SIGKILL)
        status = command.wait()
        if self.kind == "cut short" and (newest := newest_checkpoint(self.run)[0]):
            os.truncate(newest, int(self.share * newest.stat().st_size))
        return None if status != -1 else "it did not end"

    def result(self, reference: Path, injected: str | None) -> Result:
        """Go on, and compare with the run that nothing happened to."""
        begun = _step_in(self.folder)
        newest = newest_checkpoint(self.run)[0]
        saved = torch.load(newest, weights_only=True)["global_step"] if newest else 0
        lost = max(0, begun - saved)
        if injected:
            return Result(lost, injected)
        status = Command(self.folder, "resume=last").wait()
        if status != 0:
            return Result(lost, f"resume=last ended with {status}")
        if len(list(self.folder.glob("runs/*/*"))) != 1:
            return Result(lost, "there is a second run directory")
        if column(self.run, "train/loss") != column(reference, "train/loss"):
            return Result(lost, "another curve")
        ours, theirs = weights(self.run), weights(reference)
        same = all(torch.equal(ours[name], theirs[name]) for name in theirs)
        return Result(lost, None if same else "other weights")

    @property
    def run(self) -> Path:
        """The run directory."""
        return next(self.folder.glob("runs/*/*"))

    def _fill_the_disk(self, command: Command) -> str | None:
        filler = self.folder / "filler"
        if os.path.ismount(self.folder):
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass
        else:
            for rank in range(RANKS[self.strategy]):
                pid = int((self.folder / f"pid-{rank}").read_text())
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        status = command.wait()
        filler.unlink(missing_ok=True)
        return None if status != -1 else "it did not end"


@contextmanager
def disk(folder: Path, small: bool) -> Iterator[bool]:
    """Make a folder, on a small disk of its own if that is asked for and can be had."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = small and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def injure(strategy: str, injections: int, seed: int, root: Path) -> list[tuple[str, Result]]:
    """Do all injections of a strategy, and print its row; return the kind and result of each."""
    whole = root / strategy
    whole.mkdir()
    if Command(whole, *TASK, f"strategy={strategy}").wait() != 0:
        sys.exit((whole / "output.txt").read_text())
    (reference,) = whole.glob("runs/*/*")
    assert len(column(reference, "train/loss")) == STEPS
    bytes_of_a_file = (reference / "checkpoints/last.ckpt").stat().st_size
    events = [path.stat().st_mtime for path in (whole / "pid-0", whole / "step")]
    seconds_a_step = (events[1] - events[0]) / STEPS

    kinds = [kind for kind in KINDS if not (kind == NOT_SINGLE and strategy == "single")]
    # So that a few for each strategy are all kinds in all.
    first = 2 * list(RANKS).index(strategy)
    results: list[tuple[str, Result]] = []
    for number in range(injections):
        kind = kinds[(first + number) % len(kinds)]
        folder = root / f"{strategy}-{number}"
        draw = random.Random(f"{seed} {strategy} {number}")
        with disk(folder, small=kind == "full disk"):
            injection = Injection(strategy, kind, draw, folder, seconds_a_step)
            result = injection.result(reference, injection.inject(bytes_of_a_file))
            if result.wrong:
                print(f"\n{strategy} {number}, {kind}, at step {injection.step}: {result.wrong}")
                print((folder / "output.txt").read_text())
        results.append((kind, result))
    survived = sum(result.wrong is None for _, result in results)
    lost = [result.lost_steps for _, result in results]
    print(
        f"{strategy:10}{injections:12}{survived:10}{statistics.median(lost):13g}{max(lost):5}"
        f"{injections - survived:7}",
        flush=True,
    )
    return results


def _step_in(folder: Path) -> int:
    """The step that began last; 0 before the first."""
    try:
        return int(struct.unpack("i", (folder / "step").read_bytes())[0])
    except (OSError, struct.error):
        return 0


def main(injections: int = 50, seed: int = 0, *strategies: str) -> int:
    """Injure every strategy; 1 if any run came out wrong."""
    # Those of processes that were killed are cleaned up by Python at the end, and it says so.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    with folder_for_runs() as root:
        with output_to("ranks.txt"):
            warm_up()
        print(
            f"{'':10}{'injections':>12}{'survived':>10}{'lost, median':>13}{'max':>5}{'wrong':>7}"
        )
        results = [
            result
            for name in strategies or RANKS
            for result in injure(name, injections, seed, root)
        ]
    print("\nlost steps by kind: median, max")
    for kind in KINDS:
        if lost := [result.lost_steps for its_kind, result in results if its_kind == kind]:
            print(f"{kind:22}{statistics.median(lost):9g}{max(lost):5}")
    return 0 if all(result.wrong is None for _, result in results) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), *sys.argv[3:]))
