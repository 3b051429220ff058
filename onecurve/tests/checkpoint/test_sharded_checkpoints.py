"""`checkpoint.format=sharded`: every rank writes its part, and every strategy reads it."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import Cli, Refused, column
from test_resume import same
from torch.distributed.checkpoint import load

from onecurve import read_checkpoint
from onecurve.checkpoint.file import damage

SHARDED = ("checkpoint.format=sharded", "test=false", "data.batch_size=128")


@pytest.mark.long
@pytest.mark.compares
def test_it_holds_what_one_file_holds_and_becomes_one(train: Cli, cli: Cli, tmp_path: Path) -> None:
    for name in ("fsdp", "pipeline"):
        one_file, sharded = (
            train(f"strategy={name}", *SHARDED, f"checkpoint.format={form}").run / "checkpoints"
            for form in ("file", "sharded")
        )
        target = tmp_path / f"{name}.ckpt"
        torch.save(read_checkpoint(sharded / "last.ckpt"), target)
        ours = torch.load(target, weights_only=True)
        theirs = torch.load(one_file / "last.ckpt", weights_only=True)
        assert ours.keys() == theirs.keys()
        assert len(ours["optimizer_states"][0]["state"]) == 6
        for part in ("state_dict", "optimizer_states"):
            torch.testing.assert_close(ours[part], theirs[part], rtol=0, atol=0)
    weights = {key: torch.zeros_like(value) for key, value in theirs["state_dict"].items()}
    load({"state_dict": weights}, checkpoint_id=sharded / "last.ckpt", no_dist=True)
    assert same(weights, theirs["state_dict"])
    assert cli("evaluate.py", f"checkpoint={sharded}/best.ckpt").status == 0
    for source in (target, sharded / "best.ckpt"):
        fresh = train(f"init={source}", "test=false", "trainer.max_epochs=1")
        assert "init: 6 of 6 weights" in fresh.out


@pytest.mark.compares
def test_in_the_background_and_from_one_format_to_the_other(train: Cli, warm: Cli) -> None:
    options = ("scheduler=none", "test=false", "data.batch_size=128", "callbacks.swa.start=1")
    options += ("callbacks=[checkpoint,swa,ema]",)
    whole = train(*options, "trainer.max_epochs=3").run
    often = ("checkpoint.async=true", "callbacks.checkpoint.last_every_n_steps=2")
    run = train(*options, *often, "checkpoint.format=sharded", "trainer.max_epochs=1").run
    last = run / "checkpoints/last.ckpt"
    assert last.is_dir()
    for epochs, form in ((2, "file"), (3, "sharded")):
        changed = (f"checkpoint.format={form}", f"trainer.max_epochs={epochs}")
        warm("train.py", "resume=last", *changed)
        assert last.is_dir() == (form == "sharded")
        assert damage(last) is None
    assert sorted(path.name for path in last.parent.iterdir()) == ["best.ckpt", "last.ckpt"]
    assert {"rest.ckpt", ".metadata"} < {path.name for path in last.iterdir()}
    assert column(run, "train/loss") == column(whole, "train/loss")
    for file in ("swa.ckpt", "checkpoints/last.ckpt"):
        ours, theirs = (read_checkpoint(each / file)["state_dict"] for each in (run, whole))
        assert same(ours, theirs), file


def test_what_is_not_whole_is_passed_over_or_told(
    trained: Cli, cli: Cli, refused: Refused, tmp_path: Path
) -> None:
    run = shutil.copytree(trained(*SHARDED, "strategy=single").run, tmp_path / "run")
    last, best = run / "checkpoints/last.ckpt", run / "checkpoints/best.ckpt"
    (last / "rest.ckpt").unlink()
    assert damage(last) == "rest.ckpt is missing"
    shard = best / "__0_0.distcp"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    for path, said in ((last, "rest.ckpt is missing"), (best, "cannot be read (")):
        line = refused("evaluate.py", f"checkpoint={path}")
        assert f"{path}: " in line
        assert said in line
    shard.write_bytes(content)
    more = cli("train.py", f"resume={run}", "trainer.max_epochs=3")
    assert more.status == 0, more.err
    assert "skipped last.ckpt: rest.ckpt is missing" in more.out
    assert damage(last) is None
