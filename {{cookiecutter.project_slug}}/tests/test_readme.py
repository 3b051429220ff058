"""Every command of the README runs, with small data and few steps."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from conftest import ROOT, Cli, jobs_of
from small_data import write_images, write_mnist
from torchvision.models import resnet18

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
LINES = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("python ")]
# `make test` runs what you read here; a test of the template runs the others.
SHELL = {"make setup", "source .venv/bin/activate", "make test"}

FEW_STEPS = (
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "data.batch_size=4",
)
ALSO = {"data=mnist": "data.val_size=10", "experiment=lenet_mnist": "data.val_size=10"}


@pytest.fixture
def checkpoint(cli: Cli, tmp_path: Path) -> str:
    outcome = cli("train.py", *FEW_STEPS, "trainer.max_epochs=1")
    assert outcome.status == 0, outcome.err
    return str(outcome.run.relative_to(tmp_path) / "checkpoints")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README takes for granted: images, MNIST, pretrained weights."""
    write_mnist(tmp_path / "data/MNIST/raw")
    for name in ("cat", "dog"):
        write_images(tmp_path / "photos" / name, 20)
    weights = tmp_path / "torch/hub/checkpoints/resnet18-f37072fd.pth"
    weights.parent.mkdir(parents=True)
    torch.save(resnet18().state_dict(), weights)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


def test_all_commands_are_known() -> None:
    assert len(COMMANDS) >= 14
    assert {line for line in LINES if line and not line.startswith("python ")} == SHELL


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(cli: Cli, checkpoint: str, command: str) -> None:
    script, *arguments = shlex.split(command)[1:]
    arguments = [word.replace("runs/DATE/TIME/checkpoints", checkpoint) for word in arguments]
    if script == "train.py" and not {"--help", "--cfg"} & set(arguments):
        arguments += FEW_STEPS
        arguments += [extra for word, extra in ALSO.items() if word in arguments]
        if "trainer.max_epochs=40" not in arguments:
            arguments += ["trainer.max_epochs=1"]
    if script == "report.py":
        sweep = cli("train.py", "-m", "seed=1,2", *FEW_STEPS, "trainer.max_epochs=1")
        arguments = [str(sweep.runs[0].parent)]
    outcome = cli(script, *arguments)
    assert outcome.status == 0, outcome.err
    if script == "report.py":
        assert {"sweep.csv", "sweep.html"} <= {path.name for path in sweep.runs[0].parent.iterdir()}
        return
    shows = {"--help", "--cfg"} & set(arguments)
    in_place = "resume=last" in arguments
    several = "-m" in arguments
    expected = jobs_of(outcome.runs[0].parent) if several else 0 if shows or in_place else 1
    done = ("finished", "pruned")
    finished = [run for run in outcome.runs if run_status(run) in done]
    assert len(finished) == expected


def run_status(run: Path) -> str:
    return str(json.loads((run / "metrics.json").read_text())["status"])


def test_the_table_of_groups_is_complete() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", README, re.MULTILINE))
    for group, cells in rows.items():
        choices = {path.stem for path in (ROOT / "configs" / group).glob("*.yaml")}
        assert choices == set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", cells))), group
