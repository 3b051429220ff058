"""What the library's pages show is true of a project: commands run, the example trains."""

import csv
import re
from pathlib import Path

import pytest
from baking import LIBRARY, TEMPLATE, bake, python_in, scripts_in

PAGES = [*sorted((LIBRARY / "docs").glob("*.md")), TEMPLATE / "docs/start.md"]
# Most of the commands, which show what the tests of the library try, too.
MORE = ("callbacks", "recipes", "strategies", "sweeps")
LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param([page for page in PAGES if page.stem not in MORE], id="first"),
        pytest.param([page for page in PAGES if page.stem in MORE], id=",".join(MORE), marks=LONG),
    ],
)
def test_every_command_runs(tmp_path: Path, pages: list[Path]) -> None:
    """By the test of a project's own pages, which has run what they show, too."""
    project = bake(tmp_path / "out")
    own: set[str] = set()
    for page in (project / "docs").glob("*.md"):
        own |= set(map(command, page.read_text(encoding="utf-8").splitlines()))
        page.unlink()
    for page in pages:
        lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("python") or command(line) not in own]
        (project / "docs" / page.name).write_text("".join(kept), encoding="utf-8")
    which = ["tests/test_docs.py", "-k", "test_command_runs"]
    shown = python_in(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which)
    assert int(re.findall(r"(\d+) passed", shown)[0]) > 9
    assert "skipped" not in shown


def command(line: str) -> str:
    """What is typed, without what is said of it."""
    return line.partition("  #")[0].strip()


@pytest.mark.long
def test_the_vision_transformer_trains_alike(tmp_path: Path) -> None:
    """A task that is none of the project's, under strategies that shard it or split it."""
    project = bake(tmp_path / "out")
    page = (LIBRARY / "docs/strategies.md").read_text(encoding="utf-8")
    files = re.findall(r"In\s`((?:tasks|configs)/\S+)`[^`]*\n\n```\w+\n(.*?)```", page, re.DOTALL)
    for name, block in files:
        folder = project if name.startswith("configs/") else project / "src/my_project"
        (folder / name).write_text(block, encoding="utf-8")
    data = "data=synthetic data.channels=3 data.num_samples=300 data.num_val=20"
    short = "trainer.precision=64-true trainer.max_epochs=1 callbacks=[] logger=csv test=false"
    strategies = ("single", "fsdp", "pipeline strategy.schedule=interleaved_zero_bubble")
    lines = [
        f"train.py task=vit {data} {short} monitor=null strategy={name} hydra.run.dir=runs/{number}"
        for number, name in enumerate(strategies)
    ]
    scripts_in(project, *lines)
    single, *others = [losses(project / f"runs/{number}") for number in range(len(strategies))]
    assert len(single) > 4
    for curve in others:
        assert curve == pytest.approx(single, rel=1e-11, abs=0)


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
