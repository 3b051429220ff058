"""Checkpoints at an address are always whole, and a run goes on from them where nothing else is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FLOAT64, ROOT, ROUNDING, TINY, Cli, one_of_a_kind
from lightning.pytorch import Callback
from test_resume import weights

from onecurve.checkpoint import remote

SHORT = ("test=false", FLOAT64, "callbacks.checkpoint.last_every_n_steps=4")
ONE = (*SHORT, "trainer.max_epochs=1")


class TakeAway(Callback):
    """Puts a file where the address was, as a disk does that is gone."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_train_start(self, *_: object) -> None:
        shutil.rmtree(self.folder)
        self.folder.write_text("is a file")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "WAITS", (0.01, 0.01))


def listed(folder: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((folder / "checkpoints.json").read_text())
    return found["checkpoints"]


@pytest.mark.parametrize(
    "how", one_of_a_kind(["", "strategy=fsdp checkpoint.format=sharded"], kept=[""])
)
def test_a_mirror_holds_what_the_run_holds(train: Cli, tmp_path: Path, how: str) -> None:
    bucket = tmp_path / "bucket/run"
    there = f"file://{bucket}"
    # What a run left that was killed while it sent.
    (bucket / "last.ckpt.0123abcd").mkdir(parents=True)
    (bucket / "last.ckpt.0123abcd/last.ckpt").write_text("half")
    whole = train(*how.split(), *SHORT, f"checkpoint.mirror_to={there}")
    names = {file.name for file in (whole.run / "checkpoints").glob("*.ckpt")}
    assert set(listed(bucket)) == names == {"best.ckpt", "last.ckpt"}
    # What warm ranks print is shown to the first test that asks for them.
    if not how:
        assert f"mirror: {there} has best.ckpt, last.ckpt\n" in whole.err
    # Nothing lies there that the list does not name, and nothing is left that waited.
    folders = {each.name for each in bucket.iterdir() if each.is_dir()}
    assert folders == {entry["folder"] for entry in listed(bucket).values()}
    assert [each.name for each in (whole.run / ".mirror").iterdir()] == ["run"]
    on = train(*how.split(), *SHORT, f"resume={there}/last.ckpt", "trainer.max_epochs=3")
    assert on.err.count("fetched last.ckpt from") == 1
    assert (on.run / "checkpoints/last.ckpt").exists()


def test_an_address_that_fails_never_ends_a_run(train: Cli, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    away = ("+callbacks.away._target_=test_mirror.TakeAway", f"+callbacks.away.folder={bucket}")
    run = train(*ONE, f"checkpoint.mirror_to=file://{bucket}", *away)
    assert f"last.ckpt could not be sent to file://{bucket}: " in run.err
    assert "training continues" in run.err
    assert "has nothing of this process; the newest" in run.err


def test_a_checkpoint_at_an_address_is_evaluated_and_begun_from(
    train: Cli, cli: Cli, tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    there = f"file://{bucket}"
    train(*ONE, f"checkpoint.mirror_to={there}")
    evaluated = cli("evaluate.py", f"checkpoint={there}/best.ckpt")
    assert evaluated.status == 0, evaluated.err
    begun = train(*ONE, f"init={there}")
    assert "weights are from" in begun.out
    # What the run has recorded can be typed again anywhere.
    assert f"file: {there}\n" in (begun.run / "config.yaml").read_text()
    missing = cli("evaluate.py", f"checkpoint={there}/other.ckpt")
    assert missing.status == 2
    assert "there is: best.ckpt, last.ckpt" in missing.err
    again = cli("train.py", *TINY, f"checkpoint.mirror_to={there}")
    assert (again.status, again.runs) == (2, [])
    assert f"another run (best.ckpt, last.ckpt); resume from them: resume={there}, " in again.err
    last = listed(bucket)["last.ckpt"]
    file = bucket / str(last["folder"]) / "last.ckpt"
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    shutil.rmtree(tmp_path / "cache")
    damaged = cli("train.py", *TINY, f"resume={there}/last.ckpt")
    assert (damaged.status, damaged.runs) == (2, [])
    assert "differs in size or checksum" in damaged.err


@pytest.mark.parametrize("shards", one_of_a_kind([False, True], kept=[False]))
def test_what_was_copied_there_by_hand_is_fetched_too(
    trained: Cli, train: Cli, cli: Cli, tmp_path: Path, shards: bool
) -> None:
    how = ("strategy=fsdp", "checkpoint.format=sharded") if shards else ()
    there = tmp_path / "bucket/run"
    shutil.copytree(trained(*how, *ONE).run, there)
    on = train(*how, *SHORT, f"resume=file://{there}/checkpoints/last.ckpt")
    assert on.metrics["global_step"] == 22
    refused = cli("train.py", *TINY, f"resume=file://{there}")
    assert refused.status == 2
    assert f"give one of its checkpoints, such as file://{there}/checkpoints/" in refused.err
    # Half of a folder is none: its index was sent last.
    if shards:
        (there / "checkpoints/last.ckpt/index.json").unlink()
        half = cli("train.py", *TINY, f"resume=file://{there}/checkpoints/last.ckpt")
        assert (half.status, half.runs) == (2, [])
        assert "there is no checkpoint" in half.err


@pytest.mark.long
def test_jobs_of_a_sweep_have_folders_of_their_own(train: Cli, cli: Cli, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    sweep = (*TINY, *ONE, f"checkpoint.mirror_to=file://{bucket}", "hydra.sweep.dir=runs/sweep")
    jobs = cli("train.py", "-m", *sweep, "optimizer.lr=0.1,0.01", "sweep/launcher=serial")
    assert jobs.status == 0, jobs.err
    names = ["01-optimizer.lr=0.1", "02-optimizer.lr=0.01"]
    assert sorted(each.name for each in bucket.iterdir()) == names
    assert all(set(listed(bucket / name)) == {"best.ckpt", "last.ckpt"} for name in names)
    asked = cli("train.py", *TINY, f"resume=file://{bucket}")
    assert f"holds several runs; add the name of one: {', '.join(names)}" in asked.err
    on = train(*SHORT, f"resume=file://{bucket}/{names[0]}")
    assert on.metrics["global_step"] == 22
    # In place, as a run of its own, it goes on sending to the same folder.
    number = listed(bucket / names[1])["last.ckpt"]["number"]
    there = cli("train.py", f"resume=runs/sweep/{names[1]}", "trainer.max_epochs=2")
    assert there.status == 0, there.err
    assert sorted(each.name for each in bucket.iterdir()) == names
    assert listed(bucket / names[1])["last.ckpt"]["number"] > number  # type: ignore[operator]
    # Done anew where its record says that it failed, as the same sweep does: it is not another's.
    (tmp_path / "runs/sweep" / names[0] / "metrics.json").write_text('{"status": "failed"}')
    again = cli("train.py", "-m", *sweep, "optimizer.lr=0.1,0.01", "sweep/launcher=serial")
    assert again.status == 0, again.err
    assert "continuing from last.ckpt" in again.out


@pytest.mark.long
def test_ranks_that_are_started_again_keep_their_address(tmp_path: Path, trained: Cli) -> None:
    """By torchrun, whose ranks are commands of their own: each would ask, and be refused."""
    whole = trained("strategy=ddp", *SHORT)
    bucket = tmp_path / "bucket"
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--max-restarts=1")
    die = ("+callbacks.die._target_=test_resume.Die", "+callbacks.die.at=[6]")
    to = (f"checkpoint.mirror_to=file://{bucket}", "hydra.run.dir=run")
    script = str(ROOT / "train.py")
    arguments = (*torchrun, script, *TINY, *SHORT, "strategy=ddp", *to, *die)
    run = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    assert set(listed(bucket)) == {"best.ckpt", "last.ckpt"}
    ours, theirs = (weights(each) for each in (tmp_path / "run", whole.run))
    assert max((ours[name] - theirs[name]).abs().max() for name in ours) <= ROUNDING
