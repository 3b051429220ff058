"""Help, typos and refusals answer at once; ranks are forked from a server that Ctrl-C spares."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, one_of_a_kind
from processes import session


def python(*typed: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *typed]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)


def test_a_refusal_that_nobody_hears_is_one(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'train.py'))}"
    for stderr in ("2>/dev/full", ">&- 2>&-"):
        done = subprocess.run(["bash", "-c", f"{command} seed=-1 {stderr}"], cwd=tmp_path)
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
from torchmetrics.audio import PermutationInvariantTraining  # whoever asks for it has it
"""


@pytest.mark.long
def test_whoever_starts_ranks_imports_no_lightning_and_they_no_scipy_signal() -> None:
    done = python("-c", IMPORTED)
    assert done.returncode == 0, done.stderr


KILLED = """
import os, signal, time
from onecurve.launch.forkserver import warm_up

warm_up()
time.sleep({delay})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the server imports to the end")
@pytest.mark.parametrize("delay", one_of_a_kind([0, 0.5], kept=[0.5]))
def test_a_server_that_still_imports_ends_with_its_command(delay: float) -> None:
    script = KILLED.format(delay=delay)
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as command:
        command.wait()
        deadline = time.monotonic() + 2  # its imports take longer
        while session(command.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
