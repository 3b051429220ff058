"""Jobs side by side: processes of this machine that share it. Those of Slurm are in slurm/."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY, Cli, column, run_directories
from processes import Command, nothing_stays_of
from test_resume import same, weights
from test_sweeps import statuses

from onecurve.app.sweep.launchers import share


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # More threads add up in other parts, which rounds otherwise.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


Start = Callable[..., Command]


def sweep(start: Start, folder: Path, *arguments: str) -> Path:
    """The directory of a sweep that must succeed."""
    command = start("-m", *TINY, *arguments)
    _, said = command.communicate(timeout=300)
    assert command.returncode == 0, said
    assert "Traceback" not in said
    (directory,) = {run.parent for run in run_directories(folder)}
    return directory


@pytest.mark.compares
@pytest.mark.long
def test_side_by_side_is_as_one_after_the_other(
    cli: Cli, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed = ("strategy=single,ddp", "trainer.limit_train_batches=5")
    parallel = sweep(start, tmp_path, *typed, "sweep/launcher=joblib")
    torch.set_num_threads(1)
    (tmp_path / "serial").mkdir()
    monkeypatch.chdir(tmp_path / "serial")
    serial = cli("train.py", "-m", *TINY, *typed).runs
    assert len(serial) == 2
    for run in serial:
        for name in ("train/loss", "val/loss", "val/acc"):
            assert column(run, name) == column(parallel / run.name, name)
        assert same(weights(run), weights(parallel / run.name))


@pytest.mark.long
def test_submitit_on_this_machine(start: Start, tmp_path: Path) -> None:
    jobs = sweep(start, tmp_path, "optimizer.lr=1e-3,1e-2", "sweep/launcher=local")
    assert statuses(jobs) == {1: "finished", 2: "finished"}


@pytest.mark.long
def test_ctrl_c_lets_all_jobs_save(start: Start, tmp_path: Path) -> None:
    typed = ("seed=1,2,3", "strategy=single,ddp", "trainer.max_epochs=30", "test=false")
    command = start("-m", *TINY, *typed, "sweep/launcher=joblib", "trainer.limit_train_batches=5")
    # One is finished then, and its process is at the next.
    while len(list(tmp_path.glob("runs/*/*/*/checkpoints/last.ckpt"))) < 3:
        assert command.poll() is None, "the sweep ended by itself"
        time.sleep(0.02)
    os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=120)
    assert command.returncode == 130, said
    assert said.endswith("stopped by Ctrl-C; the same command resumes the sweep\n")
    assert all(line.startswith("stopped by ") for line in said.splitlines()), said
    # One that had not begun to train has nothing to save.
    steps = re.findall(r"^stopped by SIGINT after step (\d+)", said, re.M)
    runs = run_directories(tmp_path)
    found = statuses(runs[0].parent)
    assert set(found.values()) == {"finished", "interrupted"}
    stopped = [run for run in runs if found[int(run.name[:2])] != "finished"]
    files = [file for run in stopped for file in run.glob("checkpoints/last.ckpt")]
    saved = sorted(torch.load(file, weights_only=True)["global_step"] for file in files)
    assert saved == sorted(map(int, steps)) != []
    assert nothing_stays_of(command.pid)


def test_a_share_of_the_machine() -> None:
    gpus = ["0", "1", "2", "3", "4"]
    assert [share(gpus, place, 2) for place in range(2)] == [["0", "1"], ["2", "3"]]
    assert [share(["7"], place, 3) for place in range(3)] == [["7"]] * 3
