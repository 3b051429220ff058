"""Jobs side by side: processes of this machine that share it. Those of Slurm are in slurm/."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY, Cli, column, run_directories
from processes import nothing_stays_of
from test_resume import same, weights
from test_sweeps import statuses

from onecurve.app.sweep.launchers import share


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # More threads add up in other parts, which rounds otherwise.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run_to_the_end(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), "-m", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.compares
@pytest.mark.long
def test_side_by_side_is_as_one_after_the_other(cli: Cli, tmp_path: Path) -> None:
    sweep = ("strategy=single,ddp", *TINY, "trainer.limit_train_batches=5")
    torch.set_num_threads(1)
    serial = cli("train.py", "-m", *sweep).runs
    (tmp_path / "parallel").mkdir()
    done = run_to_the_end(*sweep, "sweep/launcher=joblib", folder=tmp_path / "parallel")
    assert "Traceback" not in done.stderr
    parallel = run_directories(tmp_path / "parallel")
    assert [run.name for run in parallel] == [run.name for run in serial]
    assert len(serial) == 2
    for one, other in zip(serial, parallel, strict=True):
        for name in ("train/loss", "val/loss", "val/acc"):
            assert column(one, name) == column(other, name)
        assert same(weights(one), weights(other))


@pytest.mark.long
def test_a_search_side_by_side(tmp_path: Path) -> None:
    run_to_the_end(
        "sweep=optuna", "sweep/launcher=joblib", "sweep.trials=4", *TINY, "trainer.max_epochs=1",
        "optimizer.lr=tag(log,interval(1e-4,1e-1))", folder=tmp_path,
    )  # fmt: skip
    (sweep,) = {run.parent for run in run_directories(tmp_path)}
    assert statuses(sweep).keys() == {1, 2, 3, 4}
    assert set(statuses(sweep).values()) <= {"finished", "pruned"}


@pytest.mark.long
def test_ctrl_c_lets_all_jobs_save(tmp_path: Path) -> None:
    sweep = (*TINY, "seed=1,2,3", "strategy=single,ddp", "trainer.max_epochs=30", "test=false")
    sweep += ("sweep/launcher=joblib", "trainer.limit_train_batches=5")
    with subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), "-m", *sweep], cwd=tmp_path, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    ) as command:  # fmt: skip
        # One is finished then, and its process is at the next.
        while len(list(tmp_path.glob("runs/*/*/*/checkpoints/last.ckpt"))) < 3:
            assert command.poll() is None, "the sweep ended by itself"
            time.sleep(0.02)
        os.killpg(command.pid, signal.SIGINT)
        _, said = command.communicate(timeout=120)
    assert command.returncode == 130, said
    *lines, last = said.splitlines()
    assert last == "stopped by Ctrl-C; the same command resumes the sweep"
    # One that had not begun to train has nothing to save.
    none_begun = "stopped by SIGINT; the same command resumes the sweep"
    lines = [line for line in lines if line not in (last, none_begun)]
    assert lines
    assert all(line.startswith("stopped by SIGINT after step ") for line in lines), said
    runs = run_directories(tmp_path)
    found = statuses(runs[0].parent)
    assert set(found.values()) == {"finished", "interrupted"}
    stopped = [run for run in runs if found[int(run.name[:2])] != "finished"]
    files = [file for run in stopped for file in run.glob("checkpoints/last.ckpt")]
    saved = sorted(torch.load(file, weights_only=True)["global_step"] for file in files)
    assert saved == sorted(int(re.findall(r"\d+", line)[0]) for line in lines)
    assert nothing_stays_of(command.pid)


def test_a_share_of_the_machine() -> None:
    gpus = ["0", "1", "2", "3", "4"]
    assert [share(gpus, place, 2) for place in range(2)] == [["0", "1"], ["2", "3"]]
    assert [share(gpus, place, 1) for place in range(1)] == [gpus]
    assert [share(["7"], place, 3) for place in range(3)] == [["7"]] * 3


@pytest.mark.long
def test_submitit_on_this_machine(tmp_path: Path) -> None:
    run_to_the_end("optimizer.lr=1e-3,1e-2", *TINY, "sweep/launcher=local", folder=tmp_path)
    (sweep,) = {run.parent for run in run_directories(tmp_path)}
    assert statuses(sweep) == {1: "finished", 2: "finished"}
