"""What the pages in docs/ say is true: their commands run, and the example trains everywhere."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import FLOAT64, ROOT, ROUNDING, Cli, column, jobs_of, largest_difference
from onecurve.strategies.single import Single

PAGE = (ROOT / "docs/strategies.md").read_text()
COMMANDS = [
    line.partition(" #")[0].strip()
    for page in sorted((ROOT / "docs").glob("*.md"))
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    for line in block.splitlines()
]
FEW_STEPS = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=3",
    "trainer.limit_test_batches=1",
)
# Those of several nodes, of jobs side by side, and of the README, have tests of their own.
ELSEWHERE = ("HOST", "torchrun", "srun", "sweep/launcher")
README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project with the example in it: the task beside, and its configuration."""
    copy = tmp_path / "project"
    copy.mkdir()
    shutil.copytree(ROOT / "configs", copy / "configs")
    for script in ROOT.glob("*.py"):
        shutil.copy(script, copy)
    (copy / "example_vit.py").write_text(block("python"))
    config, count = re.subn(r"_target_: .*\.Vit", "_target_: example_vit.Vit", block("yaml"))
    assert count == 1
    (copy / "configs/task/vit.yaml").write_text(config)
    monkeypatch.syspath_prepend(str(copy))
    return copy


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        line
        for line in COMMANDS
        if line not in README and not any(word in line for word in ELSEWHERE)
    ],
)
def test_command_runs(cli: Cli, project: Path, tmp_path: Path, command: str) -> None:
    script, *arguments = shlex.split(command)[1:]
    if "sweep" in command and script == "report.py":
        sweep = cli("train.py", "-m", "model=mlp", "seed=1,2", *FEW_STEPS).runs[0].parent
        arguments = [str(sweep)]
    elif "DATE" in command:
        first = cli("train.py", "model=mlp", *FEW_STEPS)
        assert first.status == 0, first.err
        checkpoints = str(first.run.relative_to(tmp_path) / "checkpoints")
        arguments = [word.replace("runs/DATE/TIME/checkpoints", checkpoints) for word in arguments]
        arguments += ["model=mlp"] * (script == "train.py")
    if script == "train.py":
        arguments += FEW_STEPS
        arguments += ["trainer.max_epochs=2"] * ("DATE" in command)
    outcome = cli(str(project / script), *arguments)
    assert outcome.status == 0, outcome.err
    if script == "report.py":
        assert (sweep / "sweep.html").stat().st_size > 1_000_000
        return
    finished = [run for run in outcome.runs if "finished" in (run / "metrics.json").read_text()]
    assert len(finished) == (jobs_of(outcome.runs[0].parent) if "-m" in arguments else 1)


def test_every_callback_is_in_the_table() -> None:
    page = (ROOT / "docs/callbacks.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    files = {path.stem for path in (ROOT / "configs/callbacks").glob("*.yaml")} - {"none"}
    assert files <= named


def test_what_a_callback_may_ask_for_is_there() -> None:
    page = (ROOT / "docs/callbacks.md").read_text().partition("## A callback of your own")[2]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    methods = {name for row in rows[1:] for name in re.findall(r"`(\w+)\(", row)}
    assert len(methods) >= 9
    assert all(hasattr(Single, method) for method in methods)


@pytest.mark.compares
@pytest.mark.slow
def test_somebody_elses_network_trains_under_every_strategy(cli: Cli, project: Path) -> None:
    """One LightningModule around torchvision's vision transformer, written as the page tells."""
    same = (
        "task=vit", "data=synthetic", "data.channels=3", "data.num_samples=1000",
        "data.batch_size=32", "trainer.max_epochs=2", "callbacks=[]", "logger=csv",
        FLOAT64,
    )  # fmt: skip
    strategies = (
        ("single",), ("dp", "trainer.devices=2"), ("ddp",), ("fsdp",), ("pipeline",),
        ("pipeline", "strategy.schedule=interleaved_1f1b"), ("pipeline", "strategy.schedule=zbv"),
    )  # fmt: skip
    curves = []
    for name, *options in strategies:
        outcome = cli(str(project / "train.py"), *same, f"strategy={name}", *options)
        assert outcome.status == 0, outcome.err
        curves.append(column(outcome.run, "train/loss"))
        difference = largest_difference(curves[0], curves[-1])
        assert difference <= ROUNDING, (name, options, difference)
    assert len(curves[0]) >= 50
    assert curves[0][-1] < 0.9 * curves[0][0]
