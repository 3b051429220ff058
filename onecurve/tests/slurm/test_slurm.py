"""A real Slurm: srun, sbatch, requeued and cancelled jobs, sweeps. `make test-slurm` runs these."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import CannotRun, Cluster, install, running
from conftest import FLOAT64, ROOT, ROUNDING, TINY, Cli, column, largest_difference
from conftest import run_directories as runs_in
from nodes import wait_until
from test_resume import dying

SHORT = ("trainer.limit_train_batches=6",)
# Long enough to be found at work.
LONG = ("trainer.limit_train_batches=6", "trainer.max_epochs=40", "test=false")
# Those of a machine without GPUs, on which a job may have 16 cores.
SMALL = ("hydra.launcher.partition=long", "hydra.launcher.gpus_per_node=null")
SIGUSR2 = 12
PAGE = ROOT.parents[1] / "docs/slurm.md"

Submit = Callable[..., str]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    try:
        install()
    except CannotRun as reason:
        # Not skipped: nothing was proven.
        pytest.exit(f"the tests with Slurm cannot run here: {reason}", returncode=3)
    with running() as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as a user has it, where `python` is that of these tests."""
    project = tmp_path / "project"
    shutil.copytree(ROOT, project)
    commands = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    monkeypatch.setenv("PATH", commands)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return project


@pytest.fixture
def submit(cluster: Cluster, folder: Path) -> Submit:
    """Queue the script of docs/slurm.md, as it stands; the number of the job."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "train.sbatch").write_text(script)

    def run(*arguments: str) -> str:
        said = cluster.run("sbatch", "train.sbatch", *arguments, folder=folder)
        return said.split()[-1]

    return run


def assert_equals_one_process(
    run: Path, trained: Cli, ranks: int = 2, options: tuple[str, ...] = SHORT
) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["status"], metrics["world_size"]) == ("finished", ranks)
    single = trained(FLOAT64, *options, "strategy=single").run
    for name in ("train/loss", "val/loss"):
        assert largest_difference(column(single, name), column(run, name)) <= ROUNDING


def wait_until_it_saves(cluster: Cluster, number: str, run: Path) -> None:
    cluster.wait(number, "RUNNING")
    wait_until((run / "checkpoints/last.ckpt").exists)


@pytest.mark.parametrize(("strategy", "tasks"), [("fsdp", 1), ("fsdp", 2), ("pipeline", 1)])
def test_srun_over_two_nodes(
    cluster: Cluster, folder: Path, trained: Cli, strategy: str, tasks: int
) -> None:
    command = ("python", "train.py", *TINY, FLOAT64, *SHORT, f"strategy={strategy}")
    step = ("srun", "--label", "--nodes=2", f"--ntasks-per-node={tasks}")
    said = cluster.run(*step, *command, folder=folder)
    (run,) = runs_in(folder)
    assert_equals_one_process(run, trained, 2 * tasks)
    # The first task shows the run.
    assert {line.partition(":")[0] for line in said.splitlines() if "Training fin" in line} == {"0"}


def test_torchrun_on_nodes_with_addresses_of_their_own(
    cluster: Cluster, folder: Path, trained: Cli
) -> None:
    torchrun = ("python", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1")
    torchrun += ("--rdzv-backend=c10d", "--rdzv-endpoint=node0:29500", "train.py")
    cluster.run("srun", "-N2", *torchrun, *TINY, FLOAT64, *SHORT, "strategy=ddp", folder=folder)
    (run,) = runs_in(folder)
    assert_equals_one_process(run, trained)


def test_a_job_that_is_requeued_goes_on(
    cluster: Cluster, folder: Path, trained: Cli, submit: Submit
) -> None:
    """As Slurm ends a job before its time is up, or to make room."""
    number = submit(*TINY, FLOAT64, *LONG, "strategy=ddp")
    run = folder / f"runs/slurm-{number}"
    wait_until_it_saves(cluster, number, run)
    cluster.run("scancel", "--signal=USR2", number, folder=folder)
    cluster.wait(number, "PENDING", "COMPLETING", "REQUEUED")
    cluster.wait(number, "PENDING", "RUNNING", "COMPLETED")
    record = cluster.wait(number, "COMPLETED", "FAILED", "CANCELLED")
    said = (folder / f"slurm-{number}.out").read_text()
    assert (record["JobState"], record["Restarts"], record["NumNodes"]) == ("COMPLETED", "1", "2")
    assert "stopped by SIGUSR2 after step " in said
    assert f"resume: continuing {run} from last.ckpt" in said
    assert runs_in(folder) == [run]
    assert_equals_one_process(run, trained, options=LONG)


def test_a_cancelled_job_saves(cluster: Cluster, folder: Path, submit: Submit) -> None:
    number = submit(*TINY, *LONG, "strategy=fsdp", "trainer.max_epochs=100000")
    run = folder / f"runs/slurm-{number}"
    wait_until_it_saves(cluster, number, run)
    cluster.run("scancel", number, folder=folder)
    record = cluster.wait(number, "CANCELLED")
    metrics = run / "metrics.json"
    wait_until(lambda: json.loads(metrics.read_text())["status"] == "interrupted")
    said = (folder / f"slurm-{number}.out").read_text()
    assert record["Restarts"] == "0"
    assert "stopped by SIGTERM after step " in said
    assert "Traceback" not in said
    assert not cluster.run("squeue", "--noheader", "--states=RUNNING", folder=folder)


def test_jobs_of_a_sweep_one_of_which_is_requeued(
    cluster: Cluster, folder: Path, trained: Cli
) -> None:
    """The one that has a rank 1 ends itself in its tenth step, as Slurm would for its time."""
    die = (*dying(10, rank=1), f"+callbacks.die.sent={SIGUSR2}")
    words = ("-m", *TINY, FLOAT64, *SHORT, "sweep/launcher=slurm", *SMALL, *die)
    words += ("strategy=single,ddp", "sweep.parallel=3")
    cluster.run("python", "train.py", *words, folder=folder)
    runs = runs_in(folder)
    for run, ranks in zip(runs, (1, 2), strict=True):
        assert_equals_one_process(run, trained, ranks)
    (script,) = runs[0].parent.rglob("*submission.sh")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script.read_text(), re.MULTILINE))
    expected = {"array": "0-1%2", "partition": "long", "time": "60", "cpus-per-task": "4"}
    expected |= {"mem": "16GB", "nodes": "1", "ntasks-per-node": "1"}
    assert {name: options[name] for name in expected} == expected
    assert "gpus-per-node" not in options
    shown = cluster.run("scontrol", "--oneliner", "show", "job", folder=folder)
    assert any("Restarts=1" in line and "ArrayTaskId=1" in line for line in shown.splitlines())
