"""Checkpoints at an address: written there, resumed from exactly, rejected where they cannot be.

`local://` is a folder that fsspec calls by an address; tests/storage has the server of S3.
"""

import shutil
from pathlib import Path

import pytest
from conftest import EPOCH, TINY, Cli, Refused, column, run_directories
from lightning.pytorch import Callback
from nodes import Start
from test_resume import dying

DIRPATH = "callbacks.checkpoint.dirpath"
LONG = ("callbacks.checkpoint.last_every_n_steps=4",)
SHORT = (*LONG, "test=false")
ONE = (*SHORT, "trainer.max_epochs=1")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.mark.compares
def test_a_killed_run_continues_elsewhere_and_its_best_is_tested_evaluated_and_begun_from(
    train: Cli, trained: Cli, cli: Cli, refused: Refused, start: Start, bucket: Path
) -> None:
    there = f"local://{bucket}/mine"
    start(*TINY, *LONG, f"{DIRPATH}={there}", *dying(EPOCH + 6)).communicate(120)
    (killed,) = run_directories(Path())
    assert not (killed / "checkpoints").exists()
    shutil.rmtree("runs")
    on = train(*LONG, f"{DIRPATH}={there}", f"resume={there}/last.ckpt")
    assert on.err.count("fetched last.ckpt from") == 1
    assert "the run before had" not in on.out  # its best is at this address, too
    assert f"evaluate.py checkpoint={there}/best.ckpt" in on.out
    whole = trained(*LONG)
    curve, theirs = (column(run, "train/loss") for run in (whole.run, on.run))
    assert len(theirs) == 2 * EPOCH - 16
    assert curve[-len(theirs) :] == theirs
    assert on.metrics["test/acc"] == pytest.approx(whole.metrics["test/acc"])
    assert {file.name for file in (bucket / "mine").iterdir()} == {"best.ckpt", "last.ckpt"}

    assert cli("evaluate.py", f"checkpoint={there}/best.ckpt").status == 0
    begun = train(*ONE, f"init={there}/best.ckpt")
    assert "weights are from" in begun.out
    # What the run has recorded can be typed again anywhere.
    assert f"file: {there}/best.ckpt\n" in (begun.run / "config.yaml").read_text()
    missing = f"checkpoint={there}/other.ckpt"
    assert f"{missing}: there is no checkpoint" in refused("evaluate.py", missing)
    content = bytearray((bucket / "mine/last.ckpt").read_bytes())
    content[500] ^= 1
    (bucket / "mine/last.ckpt").write_bytes(content)
    damaged = cli("train.py", *TINY, f"resume={there}/last.ckpt")
    assert (damaged.status, damaged.runs) == (2, [])
    assert "is not a complete checkpoint: its checksum is wrong" in damaged.err


def test_what_was_copied_there_by_hand_is_fetched(trained: Cli, train: Cli, bucket: Path) -> None:
    shutil.copytree(trained(*ONE).run, bucket / "run")
    assert train(*SHORT, f"resume=file://{bucket}/run").metrics["global_step"] == 2 * EPOCH


@pytest.mark.long
def test_jobs_of_a_sweep_have_folders_of_their_own(train: Cli, cli: Cli, bucket: Path) -> None:
    sweep = (*TINY, *ONE, f"{DIRPATH}=local://{bucket}", "optimizer.lr=0.1,0.01")
    assert cli("train.py", "-m", *sweep, "sweep/launcher=serial").status == 0
    files = {str(file.relative_to(bucket)) for file in bucket.glob("*/*")}
    names = ("01-optimizer.lr=0.1", "02-optimizer.lr=0.01")
    assert files == {f"{name}/{file}.ckpt" for name in names for file in ("best", "last")}
    assert train(*SHORT, f"resume=local://{bucket}/{names[0]}").metrics["global_step"] == 2 * EPOCH


class TakeAway(Callback):
    """Puts a file where the address was, as a disk does that is gone."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_train_epoch_end(self, *_: object) -> None:
        shutil.rmtree(self.folder)
        self.folder.write_text("is a file")


def test_an_address_that_cannot_be_written_to_is_rejected_before_training_or_ends_it(
    cli: Cli, refused: Refused, bucket: Path
) -> None:
    to = f"{DIRPATH}=local://{bucket}"
    away = ("+callbacks.away._target_=test_addresses.TakeAway", f"+callbacks.away.folder={bucket}")
    run = cli("train.py", *TINY, to, *away)
    assert run.status == 2
    line = f"error: checkpoint: local://{bucket}/best.ckpt could not be written: "
    assert run.err.splitlines()[-1].startswith(line)
    assert f"{to}: cannot be written to (" in refused("train.py", *TINY, to)
