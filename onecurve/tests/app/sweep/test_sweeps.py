"""Many runs by one command: nothing is lost, nothing is done twice, and one failure stays one."""

import json
import os
import re
import shutil
import time
from pathlib import Path
from weakref import WeakSet

import pytest
import yaml
from conftest import (
    FLOAT64,
    ROUNDING,
    STRATEGIES,
    TINY,
    Cli,
    Refused,
    column,
    largest_difference,
    run_directories,
)
from fake_jobs import FakeJobs, fake_jobs
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig
from processes import Command

from onecurve.app.run.record import try_lock

__all__ = ["fake_jobs"]


# Of most runs here no more is asked than that they were there.
SHORT = (*TINY, "trainer.limit_train_batches=4", "trainer.limit_val_batches=1")


def statuses(sweep: Path) -> dict[int, str]:
    """Status by number of the job, from 1."""
    return {
        int(path.parent.name[:2]): json.loads(path.read_text())["status"]
        for path in sorted(sweep.glob("*/metrics.json"))
    }


@pytest.mark.compares
@pytest.mark.long
def test_strategies_by_learning_rates(cli: Cli, tmp_path: Path) -> None:
    before = dict(os.environ)
    strategies = [*STRATEGIES, "tensor"]
    names = ",".join(strategies)
    done = cli("train.py", "-m", f"strategy={names}", "optimizer.lr=1e-3,1e-2", *SHORT, FLOAT64)
    assert done.status == 0, done.err
    (sweep,) = (tmp_path / "runs").glob("*/*")
    jobs = [f"lr={lr},strategy={name}" for name in strategies for lr in ("0.001", "0.01")]
    expected = [f"{number:02}-optimizer.{job}" for number, job in enumerate(jobs, start=1)]
    assert [run.name for run in done.runs] == expected
    assert sorted(path.name for path in sweep.iterdir() if path.is_dir()) == expected
    for lr in ("0.001", "0.01"):
        curves = [column(run, "train/loss") for run in done.runs if f"lr={lr}," in run.name]
        assert max(largest_difference(curves[0], curve) for curve in curves) <= ROUNDING
    assert dict(os.environ) == before


ALIVE: WeakSet[LightningModule] = WeakSet()


class Alone(Callback):
    """A job fails if its process holds the task of another; and one does in any case."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ALIVE.add(pl_module)
        assert len(ALIVE) == 1
        if trainer.default_root_dir.endswith("seed=1"):
            raise MemoryError("as on a full GPU")


@pytest.mark.long
def test_a_job_finds_nothing_of_the_one_before_in_memory(cli: Cli) -> None:
    watched = ("+callbacks.alone._target_=test_sweeps.Alone", "trainer.max_epochs=1")
    done = cli("train.py", "-m", "seed=0,1,2", *SHORT, *watched)
    assert statuses(done.runs[0].parent) == {1: "finished", 2: "failed", 3: "finished"}
    assert "as on a full GPU" in done.err


def kill_when_there_is(file: str, *arguments: str, folder: Path) -> None:
    """Start a sweep, and kill it with a signal that it cannot hear."""
    sweep = Command(folder, "train.py", "-m", *arguments)
    while not list(folder.glob(file)):
        assert sweep.poll() is None, "the sweep ended by itself"
        time.sleep(0.02)
    sweep.kill()
    sweep.wait(timeout=60)


@pytest.mark.long
def test_a_killed_sweep_goes_on(warm: Cli, tmp_path: Path) -> None:
    arguments = ("seed=range(3)", "strategy=ddp", *TINY, "trainer.max_epochs=4", "test=false")
    arguments += ("trainer.limit_train_batches=10",)
    second = "runs/*/*/02-seed=1/checkpoints/last.ckpt"
    kill_when_there_is(second, *arguments, folder=tmp_path)
    done = warm("train.py", "-m", *arguments)
    (sweep,) = {run.parent for run in run_directories(tmp_path)}
    assert statuses(sweep) == dict.fromkeys(range(1, 4), "finished")
    assert "resuming a sweep of 3 jobs" in done.out
    assert done.out.count("finished already") == 1
    assert done.out.count("resume: continuing from last.ckpt") == 1
    # The second went on where it was, the others began once.
    for run in run_directories(tmp_path):
        assert len(column(run, "train/loss")) == 40
    named = warm("train.py", "-m", *arguments, f"hydra.sweep.dir={sweep}")
    assert named.out.count("finished already") == 3


def test_two_processes_do_not_share_a_grid(refused: Refused, tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "mine/.lock")
    assert lock is not None
    line = refused("train.py", "-m", *SHORT, "seed=1,2", "hydra.sweep.dir=mine")
    lock.release()
    assert "hydra.sweep.dir=mine: another process is running" in line


def test_failures_stay_where_they_are(cli: Cli) -> None:
    done = cli(
        "train.py", "-m", *SHORT, "optimizer.lr=1e-3,1e9", "+callbacks.fail.rank=0,9",
        "+callbacks.fail._target_=test_failures.FailOnRank",
    )  # fmt: skip
    assert done.status == 1
    (sweep,) = {run.parent for run in done.runs}
    assert statuses(sweep) == {1: "failed", 2: "finished", 3: "failed", 4: "diverged"}
    raised, table = "ArithmeticError: train failed", (sweep / "sweep.csv").read_text()
    trace = (done.runs[0] / "failure.txt").read_text()
    assert raised in trace
    assert "test_failures.py" in trace
    for run, error in ((done.runs[0], raised), (done.runs[3], "train/loss is nan")):
        assert error in json.loads((run / "metrics.json").read_text())["error"]
        assert error in table
    assert f"job 1 of 4 failed: {raised}" in done.err
    assert "job 4 of 4 diverged: train/loss is nan from step" in done.err
    assert "Traceback" not in done.err
    assert "the same command resumes the sweep" in done.out


def test_a_failed_job_runs_again_with_the_same_command(
    cli: Cli, warm: Cli, fake_jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(config: DictConfig) -> dict[str, float]:
        raise ArithmeticError("try 1 failed")

    sweep = ("train.py", "-m", *SHORT, "seed=1")
    with monkeypatch.context() as patch:
        patch.setattr(fake_jobs, "outcome", fails)
        first = cli(*sweep)
    assert first.status == 1
    assert statuses(first.run.parent) == {1: "failed"}
    assert "ArithmeticError: try 1" in (first.run / "failure.txt").read_text()
    new = warm(*sweep, "sweep.resume=false")  # which does not look for another to resume
    assert len(new.runs) == 1
    again = warm(*sweep)
    assert again.runs == []
    assert "resuming a sweep of 1 job" in again.out
    assert statuses(first.run.parent) == {1: "finished"}
    assert not (first.run / "failure.txt").exists()
    # All are done: the same command is a new sweep.
    assert len(cli(*sweep).runs) == 1
    assert fake_jobs.started == ["01"] * 4  # with one value there is nothing to be named by


def test_finished_jobs_are_skipped(warm: Cli, refused: Refused, fake_jobs: FakeJobs) -> None:
    """One that was under way, and one that was never begun, are run; another sweep is not."""
    sweep = ("train.py", "-m", *SHORT, "seed=1,2,3", "hydra.sweep.dir=mine")
    first = warm(*sweep).out
    assert "To give a sweep a name" not in first
    left = re.findall(r"^jobs left: (\d of \d), about 0:00:\d\d$", first, re.M)
    assert left == ["2 of 3", "1 of 3"]
    record = yaml.safe_load(Path("mine/sweep.yaml").read_text())
    assert record["command"].endswith("seed=1,2,3 hydra.sweep.dir=mine")
    assert [job[-1] for job in record["jobs"]] == ["seed=1", "seed=2", "seed=3"]
    assert record["config"]["model"]["_target_"].endswith("mlp")
    (Path("mine/02-seed=2") / "metrics.json").write_text('{"status": "running"}')
    shutil.rmtree("mine/03-seed=3")
    fake_jobs.started.clear()
    again = warm(*sweep)
    assert again.out.count("finished already") == 1
    assert re.findall(r"^jobs left: .*,", again.out, re.M) == ["jobs left: 1 of 3,"]
    assert fake_jobs.started == ["02-seed=2", "03-seed=3"]
    assert statuses(Path("mine")) == dict.fromkeys((1, 2, 3), "finished")
    before = sorted(Path.cwd().rglob("*"))
    other = "seed=1,2,3 hydra.sweep.dir=mine with the configuration in sweep.yaml"
    for typed, said in (("trainer.max_epochs=3", other), ("sweep.resume=false", "resume=true")):
        line = refused(*sweep, typed)
        assert line.startswith("error: hydra.sweep.dir=mine: holds a")
        assert said in line
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_failed_job_stops_the_sweep(cli: Cli, fake_jobs: FakeJobs) -> None:
    stop = ("data.batch_size=64,0,32", "sweep.on_failure=stop")
    done = cli("train.py", "-m", *SHORT, *stop)
    assert done.status == 1
    assert "job 2 of 3 failed: data.batch_size=0: must be a whole number" in done.err
    assert statuses(done.runs[0].parent) == {1: "finished", 2: "failed"}
    assert "2 of 3 jobs are not done" in done.out
    assert len(fake_jobs.started) == 1


@pytest.mark.long
def test_a_job_is_a_run_like_any_other(warm: Cli) -> None:
    """Its checkpoint is measured and its directory resumed, by names as they are."""
    sweep = warm("train.py", "-m", *SHORT, "optimizer.lr=choice(1e-3)", "strategy=single,ddp")
    assert sweep.runs[1].name == "02-optimizer.lr=0.001,strategy=ddp"
    job = sweep.runs[1]
    relative = job.relative_to(Path.cwd())
    warm("evaluate.py", f"checkpoint={relative}/checkpoints/best.ckpt")
    files = [f"'{run}/checkpoints/best.ckpt'" for run in sweep.runs[:2]]
    both = warm("evaluate.py", "-m", f"checkpoint={','.join(files)}")
    assert [run.name.partition("=")[0] for run in both.runs] == ["01-checkpoint", "02-checkpoint"]
    longer = warm("train.py", f"resume={relative}", "trainer.max_epochs=3")
    assert longer.runs == []
    assert json.loads((job / "metrics.json").read_text())["global_step"] == 12
