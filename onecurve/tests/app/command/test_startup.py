"""Help, typos and refusals answer at once; ranks are forked from a server that Ctrl-C spares."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, one_of_a_kind

from onecurve.machine import SIGNALS


def python(*typed: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *typed]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)


@pytest.mark.parametrize("stderr", one_of_a_kind(["2>/dev/full", ">&- 2>&-"], kept=["2>/dev/full"]))
def test_a_refusal_that_nobody_hears_is_one(stderr: str, tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'train.py'))}"
    done = subprocess.run(["bash", "-c", f"{command} data.batch_size=0 {stderr}"], cwd=tmp_path)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


ANSWERS = {
    "train.py --help": 0,
    "train.py strategy=fsdb": 1,
    "train.py data.batch_size=0": 2,
    "evaluate.py checkpoint=. strategy=single trainer.devices=2": 2,
}


@pytest.mark.parametrize("typed", one_of_a_kind(ANSWERS, kept=[*ANSWERS][::2]))
def test_answers_without_torch(typed: str, tmp_path: Path) -> None:
    (script, *arguments), status = typed.split(), ANSWERS[typed]
    done = python("-X", "importtime", str(ROOT / script), *arguments, folder=tmp_path)
    assert done.returncode == status, done.stderr[-2000:]
    assert status or "GROUP=CHOICE" in done.stdout
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "hydra.core.hydra_config" in imported
    heavy = {"torch", "lightning", "torchvision", "numpy", "matplotlib", "rich"}
    assert imported.isdisjoint(heavy), imported & heavy
    assert list(tmp_path.iterdir()) == []


IMPORTED = """
import importlib, sys
from onecurve.launch import agent, forkserver

assert "torch" in sys.modules and "lightning" not in sys.modules, "who starts ranks is none"
for name in forkserver.PRELOADED:
    importlib.import_module(name)
assert "lightning.pytorch" in sys.modules
assert not [name for name in sys.modules if name.startswith(("scipy.signal", "scipy.sparse"))]
import scipy.signal
assert scipy.signal.windows.hann(3).tolist() == [0, 1, 0], "whoever asks for it has it"
from torchmetrics.audio import PermutationInvariantTraining
"""


@pytest.mark.long
def test_whoever_starts_ranks_imports_no_lightning_and_they_no_scipy_signal() -> None:
    done = python("-c", IMPORTED)
    assert done.returncode == 0, done.stderr


PARENT = """
import multiprocessing, os, signal, sys, time
from onecurve.launch.forkserver import warm_up
from onecurve.machine import SIGNALS

def heard():
    sys.exit(any(signal.pthread_sigmask(signal.SIG_BLOCK, [])))

if __name__ == "__main__":
    received = set()
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: received.add(number))
    warm_up()
    print("started", flush=True)
    while len(received) < len(SIGNALS):
        time.sleep(0.01)
    rank = multiprocessing.get_context("forkserver").Process(target=heard)
    rank.start()
    rank.join()
    print(f"{len(received)} heard; a rank {'is deaf' if rank.exitcode else 'hears'}", flush=True)
    left = multiprocessing.get_context("forkserver").Semaphore()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_signals_leave_the_server_and_a_killed_command_no_line(tmp_path: Path) -> None:
    """A signal goes to a whole process group; after SIGKILL a tracker of semaphores ends."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, str(script)], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        assert command.stdout
        assert command.stdout.readline() == "started\n"
        time.sleep(0.3)
        for number in SIGNALS:
            os.killpg(command.pid, number)
        printed, said = command.communicate(timeout=60)
    assert (command.returncode, said) == (-signal.SIGKILL, "")
    assert printed == "4 heard; a rank hears\n"


KILLED = """
import os, signal, time
from multiprocessing import forkserver
from onecurve.launch.forkserver import warm_up

warm_up()
print(forkserver._forkserver._forkserver_pid, flush=True)
time.sleep({delay})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the server imports to the end")
@pytest.mark.parametrize("delay", one_of_a_kind([0, 0.5], kept=[0.5]))
def test_a_server_that_still_imports_ends_with_its_command(delay: float) -> None:
    script = KILLED.format(delay=delay)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as command:
        assert command.stdout
        server = int(command.stdout.readline())
        command.wait()
        deadline = time.monotonic() + 2  # its imports take longer
        while is_running(server):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


UNBORN = """
import multiprocessing, os, sys
from multiprocessing import synchronize
from onecurve.launch.forkserver import warm_up

class Absent:
    def __reduce__(self):
        return open, ("/not/there",)

if __name__ == "__main__":
    warm_up()
    context = multiprocessing.get_context("forkserver")
    for given in (context.Lock(), Absent()):
        if isinstance(given, synchronize.Lock):
            synchronize.SemLock._cleanup(given._semlock.name)  # as where this command ends
        rank = context.Process(target=print, args=(given,))
        rank.start()
        rank.join()
        print(rank.exitcode != 0, flush=True)
        print("the next", file=sys.stderr, flush=True)
    sys.stderr.close()
    os._exit(0)  # there is no lock to clean up any more
"""


@pytest.mark.long
def test_a_rank_of_a_stopped_command_prints_no_error(tmp_path: Path) -> None:
    """Any other error at its start is shown."""
    script = tmp_path / "parent.py"
    script.write_text(UNBORN)
    done = python(str(script))
    assert done.stdout == "True\nTrue\n", done.stderr
    ended, absent, _ = done.stderr.split("the next\n")
    assert ended == ""
    assert "/not/there" in absent
