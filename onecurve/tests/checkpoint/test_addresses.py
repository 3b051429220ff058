"""Checkpoints at an address: written there, resumed from exactly, rejected where they cannot be.

`local://` is a folder that fsspec calls by an address; tests/storage has the server of S3.
"""

import shutil
from pathlib import Path

import pytest
from conftest import (
    EPOCH,
    FLOAT64,
    ROUNDING,
    TINY,
    Cli,
    Refused,
    column,
    largest_difference,
    one_of_a_kind,
    run_directories,
)
from lightning.pytorch import Callback, Trainer
from nodes import Start
from test_resume import dying

DIRPATH = "callbacks.checkpoint.dirpath"
SHORT = ("test=false", FLOAT64, "callbacks.checkpoint.last_every_n_steps=4")
ONE = (*SHORT, "trainer.max_epochs=1")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.mark.compares
@pytest.mark.parametrize("how", one_of_a_kind(["single", "fsdp"], kept=["single"]))
def test_a_killed_run_continues_elsewhere(
    train: Cli, trained: Cli, start: Start, tmp_path: Path, bucket: Path, how: str
) -> None:
    to = f"{DIRPATH}=local://{bucket}/mine"
    start(*TINY, *SHORT, f"strategy={how}", to, *dying(EPOCH + 6)).communicate(120)
    (killed,) = run_directories(tmp_path)
    assert not (killed / "checkpoints").exists()
    shutil.rmtree(tmp_path / "runs")
    again = f"resume=local://{bucket}/mine/last.ckpt"
    on = train(f"strategy={how}", *SHORT, to, again)
    assert on.err.count("fetched last.ckpt from") == 1
    assert "the run before had" not in on.out  # its best is at this address, too
    whole = trained(f"strategy={how}", *SHORT)
    curve, theirs = (column(run, "train/loss") for run in (whole.run, on.run))
    assert len(theirs) == 2 * EPOCH - 16
    assert largest_difference(curve[-len(theirs) :], theirs) <= ROUNDING
    assert {file.name for file in (bucket / "mine").iterdir()} == {"best.ckpt", "last.ckpt"}


def test_the_best_at_an_address_is_tested_evaluated_and_begun_from(
    train: Cli, cli: Cli, refused: Refused, bucket: Path
) -> None:
    there = f"local://{bucket}"
    run = train(FLOAT64, f"{DIRPATH}={there}")
    assert "test/acc" in run.metrics
    assert f"evaluate.py checkpoint={there}/best.ckpt" in run.out
    evaluated = cli("evaluate.py", f"checkpoint={there}/best.ckpt")
    assert evaluated.status == 0, evaluated.err
    begun = train(*ONE, f"init={there}/best.ckpt")
    assert "weights are from" in begun.out
    # What the run has recorded can be typed again anywhere.
    assert f"file: {there}/best.ckpt\n" in (begun.run / "config.yaml").read_text()
    missing = refused("evaluate.py", f"checkpoint={there}/other.ckpt")
    assert f"checkpoint={there}/other.ckpt: there is no checkpoint" in missing
    content = bytearray((bucket / "last.ckpt").read_bytes())
    content[500] ^= 1
    (bucket / "last.ckpt").write_bytes(content)
    damaged = cli("train.py", *TINY, f"resume={there}/last.ckpt")
    assert (damaged.status, damaged.runs) == (2, [])
    assert "is not a complete checkpoint: its checksum is wrong" in damaged.err


def test_an_address_that_cannot_be_written_to_is_rejected_before_training(
    refused: Refused, bucket: Path
) -> None:
    (bucket / "file").write_text("in the way")
    line = refused("train.py", *TINY, f"{DIRPATH}=local://{bucket}/file/run")
    assert f"{DIRPATH}=local://{bucket}/file/run: cannot be written to (" in line


def test_what_was_copied_there_by_hand_is_fetched(trained: Cli, train: Cli, bucket: Path) -> None:
    there = bucket / "run"
    shutil.copytree(trained(*ONE).run, there)
    on = train(*SHORT, f"resume=file://{there}/checkpoints/last.ckpt")
    assert on.metrics["global_step"] == 2 * EPOCH
    assert train(*SHORT, f"resume=file://{there}").metrics["global_step"] == 2 * EPOCH


@pytest.mark.long
def test_jobs_of_a_sweep_have_folders_of_their_own(train: Cli, cli: Cli, bucket: Path) -> None:
    sweep = (*TINY, *ONE, f"{DIRPATH}=local://{bucket}", "hydra.sweep.dir=runs/sweep")
    jobs = cli("train.py", "-m", *sweep, "optimizer.lr=0.1,0.01", "sweep/launcher=serial")
    assert jobs.status == 0, jobs.err
    names = ["01-optimizer.lr=0.1", "02-optimizer.lr=0.01"]
    files = ["best.ckpt", "last.ckpt"]
    assert sorted(each.name for each in bucket.iterdir()) == names
    assert all(sorted(each.name for each in (bucket / name).iterdir()) == files for name in names)
    on = train(*SHORT, f"resume=local://{bucket}/{names[0]}")
    assert on.metrics["global_step"] == 22
    # In place, as a run of its own, it writes to the same folder.
    written = (bucket / names[1] / "last.ckpt").stat().st_mtime_ns
    there = cli("train.py", f"resume=runs/sweep/{names[1]}", "trainer.max_epochs=2")
    assert there.status == 0, there.err
    assert sorted(each.name for each in bucket.iterdir()) == names
    assert (bucket / names[1] / "last.ckpt").stat().st_mtime_ns > written


class TakeAway(Callback):
    """Puts a file where the address was, as a disk does that is gone."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_train_epoch_start(self, trainer: Trainer, *_: object) -> None:
        if trainer.current_epoch == 1:
            shutil.rmtree(self.folder)
            self.folder.write_text("is a file")


def test_an_address_that_is_gone_later_ends_the_run_in_a_line(cli: Cli, bucket: Path) -> None:
    away = ("+callbacks.away._target_=test_addresses.TakeAway", f"+callbacks.away.folder={bucket}")
    run = cli("train.py", *TINY, f"{DIRPATH}=local://{bucket}", *away)
    assert run.status == 2
    line = f"error: checkpoint: local://{bucket}/best.ckpt could not be written: "
    assert run.err.splitlines()[-1].startswith(line)
