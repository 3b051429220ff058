"""Jobs side by side: processes of this machine that share it, and jobs of Slurm."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY, Cli, column, run_directories
from processes import nothing_stays_of
from test_resume import dying
from test_sweeps import statuses

from onecurve.sweep.machine_share import part

LEARNING_RATES = "optimizer.lr=1e-3,1e-2"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # More threads add up in other parts, which rounds otherwise.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run_to_the_end(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), "-m", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.compares
@pytest.mark.slow
def test_side_by_side_is_as_one_after_the_other(cli: Cli, tmp_path: Path) -> None:
    sweep = ("strategy=single,ddp", *TINY, "trainer.limit_train_batches=5")
    torch.set_num_threads(1)
    serial = cli("train.py", "-m", *sweep).runs
    (tmp_path / "parallel").mkdir()
    done = run_to_the_end(*sweep, "sweep/launcher=joblib", folder=tmp_path / "parallel")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    parallel = run_directories(tmp_path / "parallel")
    assert [run.name for run in parallel] == [run.name for run in serial]
    assert len(serial) == 2
    for one, other in zip(serial, parallel, strict=True):
        for name in ("train/loss", "val/loss", "val/acc"):
            assert column(one, name) == column(other, name)
        first, second = (
            torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
            for run in (one, other)
        )
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_a_search_side_by_side(tmp_path: Path) -> None:
    done = run_to_the_end(
        "sweep=optuna", "sweep/launcher=joblib", "sweep.trials=4", *TINY, "trainer.max_epochs=1",
        "optimizer.lr=tag(log,interval(1e-4,1e-1))", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (sweep,) = {run.parent for run in run_directories(tmp_path)}
    assert statuses(sweep).keys() == {1, 2, 3, 4}
    assert set(statuses(sweep).values()) <= {"finished", "pruned"}


@pytest.mark.slow
def test_ctrl_c_lets_all_jobs_save(tmp_path: Path) -> None:
    sweep = (*TINY, "seed=1,2,3", "strategy=single,ddp", "trainer.max_epochs=60", "test=false")
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
    assert last == "stopped by Ctrl-C; the same command goes on with the sweep"
    # One that had not begun to train has nothing to save.
    lines = [line for line in lines if line != last]
    assert lines
    assert all(line.startswith("stopped by SIGINT after step ") for line in lines), said
    runs = run_directories(tmp_path)
    found = statuses(runs[0].parent)
    assert set(found.values()) == {"finished", "interrupted"}
    files = [
        run / "checkpoints/last.ckpt" for run in runs if found[int(run.name[:2])] != "finished"
    ]
    saved = [torch.load(file, weights_only=True) for file in files if file.exists()]
    steps = [int(re.findall(r"\d+", line)[0]) for line in lines]
    assert sorted(checkpoint["global_step"] for checkpoint in saved) == sorted(steps)
    assert nothing_stays_of(command.pid)


def test_a_share_of_the_machine() -> None:
    gpus = ["0", "1", "2", "3", "4"]
    assert [part(gpus, place, 2) for place in range(2)] == [["0", "1"], ["2", "3"]]
    assert [part(gpus, place, 1) for place in range(1)] == [gpus]
    assert [part(["7"], place, 3) for place in range(3)] == [["7"]] * 3


@pytest.mark.slow
def test_submitit_on_this_machine(tmp_path: Path) -> None:
    done = run_to_the_end(LEARNING_RATES, *TINY, "sweep/launcher=local", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (sweep,) = {run.parent for run in run_directories(tmp_path)}
    assert statuses(sweep) == {1: "finished", 2: "finished"}


# Stands in for Slurm: runs the tasks of an array at once, as the script that it is given says.
SBATCH = """import os, re, shutil, subprocess, sys
# submitit moves the script away.
script = shutil.copy(sys.argv[-1], "bin/script")
text = open(script).read()
first, last = map(int, re.search(r"--array=(\\d+)-(\\d+)", text).groups())
for task in range(first, last + 1):
    variables = dict(
        SLURM_JOB_ID="12" + str(task), SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID=str(task),
        SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_LOCALID="0", SLURM_NODEID="0",
        SLURM_JOB_NUM_NODES="1", SLURM_NNODES="1",
    )
    run = f"bin/task_{task}"
    with open(run, "w") as file:
        for name, value in variables.items():
            print(f"export {name}={value}", file=file)
        print(f"bash {script} && touch bin/done_{task}", file=file)
    subprocess.Popen(
        ["bash", run], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
print("Submitted batch job 12")
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do
  case "$1" in --output|--error) shift;; esac
  shift
done
exec "$@"
"""
RUN_SBATCH = """#!/bin/bash
exec "PYTHON" bin/sbatch.py "$@"
"""
# A job that is queued again begins at once.
SCONTROL = """#!/bin/bash
touch bin/requeued
(sleep 1; bash bin/task${2#12}) > /dev/null 2>&1 &
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
for task in 0 1; do
  if [ -e bin/done_$task ]; then state=COMPLETED; else state=RUNNING; fi
  echo "12_$task|$state|here"
done
"""


@pytest.mark.slow
def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "sbatch.py").write_text(SBATCH)
    scripts = {"sbatch": RUN_SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL}
    for name, text in scripts.items():
        path = commands / name
        path.write_text(text.replace("PYTHON", sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    done = run_to_the_end(
        "strategy=single,ddp", *TINY, "sweep/launcher=slurm", "sweep.parallel=3",
        "hydra.launcher.partition=long", "hydra.launcher.gpus_per_node=null",
        *dying(10, rank=1), f"+callbacks.die.sent={int(signal.SIGUSR2)}", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (sweep,) = {run.parent for run in run_directories(tmp_path)}
    assert statuses(sweep) == {1: "finished", 2: "finished"}

    # The one that has a rank 1 was ended in its tenth step, as Slurm does before its time is up.
    assert (commands / "requeued").exists()
    for run in run_directories(tmp_path):
        assert len(column(run, "train/loss")) == 42

    (script,) = sweep.rglob("*submission.sh")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script.read_text(), re.MULTILINE))
    assert options["array"] == "0-1%2"
    assert options["partition"] == "long"
    assert options["time"] == "60"
    assert options["cpus-per-task"] == "4"
    assert options["mem"] == "16GB"
    assert options["nodes"] == options["ntasks-per-node"] == "1"
    assert options["signal"].startswith("USR2@") or options["signal"].startswith("USR1@")
    assert "gpus-per-node" not in options
