"""What the library's pages show is true of a project: commands run, examples do what is said."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from baking import LIBRARY, TEMPLATE, bake, checked, environment_of, run_in

PAGES = [*sorted((LIBRARY / "docs").glob("*.md")), TEMPLATE / "docs/start.md"]
# Most of the commands, which show what the tests of the library, or of the README, try, too.
YOURS = ("your_module", "your_network")
STRATEGIES = ("strategies", "fsdp", "pipeline", "tensor", "mesh")
MORE = ("callbacks", "recipes", "start", "sweeps", *YOURS, *STRATEGIES)
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
    assert int(re.findall(r"(\d+) passed", shown)[0]) > 5
    assert "skipped" not in shown


def command(line: str) -> str:
    """What is typed, without what is said of it."""
    return line.partition("  #")[0].strip()


# What the callback needs to be at work.
TWO_STEPS = ("model=mlp", "debug=limit", "trainer.max_epochs=1", "trainer.limit_train_batches=2")


@pytest.mark.long
def test_limits_are_as_the_page_says(tmp_path: Path) -> None:
    project = bake(tmp_path / "out")
    page = (LIBRARY / "docs/callbacks.md").read_text().partition("## Limits of your own")[2]
    (session,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    files = re.findall(r"`((?:src|configs)/\S+)`[^`]*```\w+\n(.*?)```", page, re.DOTALL)
    assert len(files) == 2
    for name, content in files:
        (project / name).write_text(content)

    def train(*typed: str) -> subprocess.CompletedProcess[str]:
        return run_in(project, sys.executable, "train.py", *typed, env=environment_of(project))

    lines = session.splitlines()
    assert len(lines) == 6
    for typed, answer in zip(lines[::2], lines[1::2], strict=True):
        refused = train(*shlex.split(typed)[3:])
        assert (refused.returncode, refused.stderr) == (2, f"{answer}\n")
        assert not (project / "runs").exists()
    apart = train("+callbacks=gradient_noise", "strategy=ddp", *TWO_STEPS)
    assert apart.returncode == 2
    assert "error: callbacks.gradient_noise: each rank would draw noise of its own" in apart.stderr
    done = train("+callbacks=gradient_noise", *TWO_STEPS)
    assert done.returncode == 0, done.stderr
