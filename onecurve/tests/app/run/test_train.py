"""A training run as a user starts it, and what it leaves behind."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from conftest import EPOCH, Cli, Refused, column

RUN_FILES = (
    *(".hydra", "checkpoints/best.ckpt", "checkpoints/last.ckpt", "config.yaml"),
    *("environment.json", "logs/rank_0.log", "metrics.csv", "metrics.json"),
)


@pytest.mark.compares
def test_the_same_command_twice_gives_the_same_losses(train: Cli, trained: Cli) -> None:
    first, second = trained("strategy=single"), train("strategy=single")
    assert first.run != second.run
    for name in ("train/loss", "val/loss"):
        assert column(first.run, name) == column(second.run, name)
    other = train("seed=1")
    assert column(first.run, "train/loss") != column(other.run, "train/loss")


def test_a_precision_has_lightnings_short_names(train: Cli) -> None:
    short, full = (
        train(f"trainer.precision={name}", "trainer.max_epochs=1", "test=false")
        for name in ("bf16", "bf16-mixed")
    )
    assert column(short.run, "train/loss") == column(full.run, "train/loss")


def test_steps_end_a_run_of_very_many_epochs(train: Cli) -> None:
    outcome = train("trainer.max_epochs=99999999999999999999", "trainer.max_steps=2", "test=false")
    assert outcome.metrics["global_step"] == 2


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
