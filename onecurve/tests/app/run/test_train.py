"""A training run as a user starts it, and what it leaves behind in a directory of its own."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from conftest import EPOCH, TINY, Cli, Refused, column
from processes import Command, nothing_stays_of

RUN_FILES = (
    *(".hydra", "checkpoints/best.ckpt", "checkpoints/last.ckpt", "config.yaml"),
    *("environment.json", "logs/rank_0.log", "metrics.csv", "metrics.json"),
)
SHORT = ("trainer.max_epochs=1", "test=false")


@pytest.mark.compares
def test_the_same_command_twice_gives_the_same_losses(train: Cli, trained: Cli) -> None:
    first, second = trained("strategy=single"), train("strategy=single")
    assert first.run != second.run
    for name in ("train/loss", "val/loss"):
        assert column(first.run, name) == column(second.run, name)
    other = train("seed=1")
    assert column(first.run, "train/loss") != column(other.run, "train/loss")


def test_steps_end_a_run_of_very_many_epochs_and_a_precision_has_a_short_name(train: Cli) -> None:
    many = ("trainer.max_epochs=99999999999999999999", "trainer.max_steps=2", "test=false")
    short, full = (train(f"trainer.precision={name}", *many) for name in ("bf16", "bf16-mixed"))
    assert len(column(short.run, "train/loss")) == short.metrics["global_step"] == 2
    assert column(short.run, "train/loss") == column(full.run, "train/loss")


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_the_run_directory_holds_what_it_should(trained: Cli, strategy: str) -> None:
    outcome = trained(f"strategy={strategy}")
    run = outcome.run
    if strategy == "single":  # warm ranks print what the first test sees that asks for them
        assert "evaluate.py checkpoint=runs/" in outcome.out
        assert outcome.err == ""
    assert all((run / name).exists() for name in RUN_FILES)
    assert (run / "logs/rank_1.log").exists() == (strategy == "ddp")

    metrics = outcome.metrics
    facts = {"status": "finished", "strategy": strategy, "global_step": 2 * EPOCH}
    assert metrics.items() >= {**facts, "world_size": 2 if strategy == "ddp" else 1}.items()
    assert metrics["samples_per_second"] > 0
    for name in ("train/loss", "val/loss", "val/acc", "test/loss", "test/acc"):
        assert metrics[name] == column(run, name)[-1]
    # Every step's loss, and one value a validation.
    assert len(column(run, "train/loss")) == 2 * EPOCH
    assert len(column(run, "val/acc")) == 2

    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["strategy"]["name"] == strategy
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["config"] == config
    assert set(checkpoint["optimizer_states"][0]["state"]) == set(range(6))
    assert all(value.device.type == "cpu" for value in checkpoint["state_dict"].values())
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__.split("+")[0]
    assert environment["seed"] == 0
    assert environment["command"][-1] == f"strategy={strategy}"


def test_resuming_from_something_else_is_refused(
    trained: Cli, refused: Refused, tmp_path: Path
) -> None:
    run = trained("strategy=single").run
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes((run / "checkpoints/last.ckpt").read_bytes()[:1000])
    foreign = tmp_path / "foreign.ckpt"
    torch.save({"weights": torch.zeros(1)}, foreign)
    for file, reason in ((cut, "truncated"), (foreign, "one that a training run wrote")):
        for typed in (f"train.py resume={file}", f"evaluate.py checkpoint={file}"):
            line = refused(*typed.split())
            assert reason in line
            assert str(file) in line
    line = refused("evaluate.py", f"checkpoint={run}")
    assert f"is a run directory; name a file in it, such as {run}/checkpoints/" in line
    line = refused("evaluate.py", f"paths.runs={run.parent}")
    assert line.endswith(f"add checkpoint={run}/checkpoints/best.ckpt")


# The directory, and the newest of a project's runs


def test_nobody_joins_a_run_that_trains(
    cli: Cli, refused: Refused, tmp_path: Path, start: Callable[..., Command]
) -> None:
    slow = ("callbacks=[checkpoint,progress]", "trainer.max_epochs=100000", "data.num_workers=2")
    live = start(*TINY, *slow, "strategy=ddp")
    live.wait_for_line("epoch 3/")
    (run,) = tmp_path.glob("runs/*/*")
    written = [run / name for name in ("config.yaml", "environment.json", ".hydra/overrides.yaml")]
    before = [file.read_text() for file in written]
    for typed in ("resume=last", f"resume={run}", f"hydra.run.dir={run}"):
        line = refused("train.py", typed, "seed=2")
        assert line.startswith(f"error: {typed}: process {live.pid} on ")
        assert str(run) in line
    assert [file.read_text() for file in written] == before
    # Once it is gone, however it went, so are its ranks, and its run is free.
    os.kill(live.pid, signal.SIGKILL)
    assert nothing_stays_of(live.pid)
    epochs = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["epoch"] + 2
    more = ("strategy=single", f"trainer.max_epochs={epochs}", "test=false")
    assert cli("train.py", "resume=last", *more).status == 0
    assert len(column(run, "train/loss")) == EPOCH * epochs


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
