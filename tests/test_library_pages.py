"""What the library's pages show is true of a project: commands run, the example trains."""

import csv
import re
from pathlib import Path

import pytest
from baking import LIBRARY, TEMPLATE, bake, checked, scripts_in

PAGES = [*sorted((LIBRARY / "docs").glob("*.md")), TEMPLATE / "docs/start.md"]
# Most of the commands, which show what the tests of the library try, too.
AXES = ("fsdp", "pipeline", "tensor", "mesh")
MORE = ("callbacks", "recipes", "strategies", "sweeps", "your_module", *AXES)
LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    "pages",
    [
        pytest.param([page for page in PAGES if page.stem not in MORE], id="first"),
        pytest.param([page for page in PAGES if page.stem in MORE], id="more", marks=LONG),
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
    shown = checked(project, "checks/test_docs.py", "-k", "test_command_runs")
    assert int(re.findall(r"(\d+) passed", shown)[0]) > 9
    assert "skipped" not in shown


def command(line: str) -> str:
    """What is typed, without what is said of it."""
    return line.partition("  #")[0].strip()


def write_files(page: Path, project: Path) -> None:
    """Those that a page tells to write."""
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"In\s`((?:tasks|configs)/\S+)`[^`]*\n\n```\w+\n(.*?)```", text, re.DOTALL)
    for name, block in files:
        folder = project if name.startswith("configs/") else project / "src/my_project"
        (folder / name).write_text(block, encoding="utf-8")


IN_FLOAT64 = "trainer.precision=64-true trainer.max_epochs=2 callbacks=[] test=false monitor=null"


def trained_alike(project: Path, typed: str, loss: str, *others: str) -> None:
    """The losses of every step are those of `single` under other strategies."""
    lines = [
        f"train.py {typed} {IN_FLOAT64} strategy={strategy} hydra.run.dir=runs/{number}"
        for number, strategy in enumerate(("single", *others))
    ]
    scripts_in(project, *lines)
    single, *curves = [losses(project / f"runs/{number}", loss) for number in range(len(lines))]
    assert len(single) > 4
    for strategy, curve in zip(others, curves, strict=True):
        assert curve == pytest.approx(single, rel=1e-11, abs=0), strategy


@pytest.mark.long
def test_the_vision_transformer_trains_alike(tmp_path: Path) -> None:
    """A task that is none of the project's, under strategies that shard it or split it."""
    project = bake(tmp_path / "out")
    write_files(LIBRARY / "docs/strategies.md", project)
    data = "data=synthetic data.channels=3 data.num_samples=300 data.num_val=20 logger=csv"
    strategies = ("fsdp", "pipeline strategy.schedule=interleaved_zero_bubble")
    trained_alike(project, f"task=vit {data}", "train/loss", *strategies)


ALL = ("dp", "ddp", "fsdp", "mesh", "tensor", "pipeline")
# BatchNorm's statistics are those of the global batch; dp has a device's, pipeline a micro-batch's.
IN_STEP = ("ddp", "fsdp", "mesh", "tensor")
LAYER_NORM = ("nn.BatchNorm1d(out_feat, 0.8)", "nn.LayerNorm(out_feat)")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "loss", "change", "others"),
    [
        pytest.param("lit_mnist", "train_loss", ("", ""), ALL, id="network"),
        pytest.param("lit_gan", "d_loss", ("", ""), IN_STEP, id="gan"),
        pytest.param("lit_gan", "d_loss", LAYER_NORM, ALL, id="gan_with_layer_norm"),
        pytest.param("lit_text", "train_loss", ("", ""), ALL, id="language_model"),
    ],
)
def test_a_module_of_a_tutorial_trains_alike(
    tmp_path: Path, name: str, loss: str, change: tuple[str, str], others: tuple[str, ...]
) -> None:
    """The table of its page."""
    project = bake(tmp_path / "out")
    write_files(LIBRARY / "docs/your_module.md", project)
    file = project / f"src/my_project/tasks/{name}.py"
    module = file.read_text(encoding="utf-8")
    assert change[0] in module
    file.write_text(module.replace(*change), encoding="utf-8")
    few = "trainer.limit_train_batches=8 trainer.limit_val_batches=1"
    trained_alike(project, f"task={name} data={name} {few}", loss, *others)


def losses(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]
