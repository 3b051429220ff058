"""A run directory is one run's alone, and `resume=last` finds the newest of a project's runs."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import EPOCH, TINY, Cli, Refused, column
from processes import Command, nothing_stays_of

from onecurve.app.run.record import lock_run

SHORT = ("trainer.max_epochs=1", "test=false")


def everything(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def test_nobody_joins_a_run_that_trains(
    cli: Cli, refused: Refused, tmp_path: Path, start: Callable[..., Command]
) -> None:
    slow = ("callbacks=[checkpoint,progress]", "trainer.max_epochs=100000", "data.num_workers=2")
    live = start(*TINY, *slow, "strategy=ddp")
    live.wait_for_line("epoch 3/")
    (run,) = tmp_path.glob("runs/*/*")
    for typed in ("resume=last", f"resume={run}", f"hydra.run.dir={run}"):
        line = refused("train.py", typed)
        assert line.startswith(f"error: {typed}: process {live.pid} on ")
        assert str(run) in line
    # Once it is gone, however it went, so are its ranks, and its run is free.
    os.kill(live.pid, signal.SIGKILL)
    assert nothing_stays_of(live.pid)
    epochs = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["epoch"] + 2
    more = ("strategy=single", f"trainer.max_epochs={epochs}", "test=false")
    assert cli("train.py", "resume=last", *more).status == 0
    assert len(column(run, "train/loss")) == EPOCH * epochs


def test_nothing_is_written_into_a_directory_that_is_taken(
    refused: Refused, train: Cli, tmp_path: Path
) -> None:
    run = train(*SHORT, "-m", "seed=1,2").runs[-1]
    lock = lock_run(run)
    assert lock is not None
    before = everything(tmp_path)
    line = refused("train.py", f"resume={run}", "trainer.max_epochs=2")
    assert everything(tmp_path) == before
    assert f"process {os.getpid()} on " in line
    lock.release()


@pytest.mark.long
def test_the_newest_run_is_not_the_last_by_name(train: Cli, cli: Cli, tmp_path: Path) -> None:
    named = train(*SHORT, "hydra.run.dir=runs/zzz/a/b").run
    newest = train(*SHORT, "hydra.run.dir=runs/NAME").run
    # Neither a run outside of the folder of runs, nor a job of a sweep.
    train(*SHORT, f"hydra.run.dir={tmp_path}/outside")
    train(*SHORT, "-m", "seed=1,2")
    # Some folder of the project, and not that in which it was made.
    again = cli("train.py", "resume=last", "trainer.max_epochs=2")
    assert f"continuing {newest} from last.ckpt" in again.out
    dated = train(*SHORT).run
    assert f"continuing {dated} from" in cli("train.py", "resume=last").out
    # What was resumed is the newest again.
    assert cli("train.py", f"resume={named}").status == 0
    assert f"continuing {named} from" in cli("train.py", "resume=last").out


def test_the_newest_run_is_the_project_s_wherever_one_stands(
    train: Cli, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_ROOT", str(tmp_path / "project"))
    monkeypatch.chdir("/proc")  # where nobody can write
    train(*SHORT)
    monkeypatch.chdir(tmp_path)
    (run,) = tmp_path.glob("project/runs/*/*")
    assert f"continuing {run} from last.ckpt" in cli("train.py", "resume=last").out
    assert [path.name for path in tmp_path.iterdir()] == ["project"]


def test_a_refused_run_takes_nothing_that_was_there(cli: Cli, tmp_path: Path) -> None:
    """Its directory is removed, unless it was somebody's before."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("all of it")
    late = (*TINY, "model.hidden=[-5]", "trainer.max_epochs=1")
    outcome = cli("train.py", *late, f"hydra.run.dir={folder}")
    assert outcome.status != 0
    assert (folder / "thesis.tex").read_text() == "all of it"
    assert json.loads((folder / "metrics.json").read_text())["status"] == "failed"
