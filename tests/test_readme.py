"""The README's commands, a first hour with a project, and its pictures."""

import email
import email.utils
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest
from baking import LIBRARY, PROJECT, TEMPLATE
from readme import BAKE, README, USE, bash

# A machine where nothing can be downloaded.
OFFLINE = {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1", "https_proxy": "http://127.0.0.1:9"}
SHORT = "trainer.max_epochs=1 trainer.limit_train_batches=5"
AUTHOR = 'Zoë "Z" O\'Neil \\ 👩‍🔬'
DESCRIPTION = 'It\'s "100 %" of ${this} \\n 🔥: yes'


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The project, and what was shown: bake, set up, train, in a folder with a space.

    Needs the network. Only the address, the answers and the number of steps differ from the README.
    """
    folder = tmp_path_factory.mktemp("a folder")
    assert BAKE.strip() == "uvx cookiecutter path/to/clone"
    cookiecutter = Path(sys.executable).with_name("cookiecutter")
    answers = [f"author={AUTHOR}", f"description={DESCRIPTION}"]
    first = [str(cookiecutter), str(TEMPLATE), "--no-input", "--default-config", *answers]
    commands = re.sub(r"^(python train.py[^#\n]*)", rf"\1 {SHORT} ", USE, flags=re.M)
    assert commands.count(SHORT) == 4
    try:
        shown = bash(f"{shlex.join(first)}\n{commands}", folder)
        yield folder / "my-project", shown
    finally:
        shutil.rmtree(folder / "my-project" / ".venv", ignore_errors=True)  # gigabytes


@pytest.mark.slow
def test_a_first_hour(hour: tuple[Path, str]) -> None:
    project, shown = hour
    assert shown.count("Training finished") == 1 + 1 + 1
    assert len(re.findall(r"^job \d+ of 6: finished", shown, re.M)) == 6  # 3 strategies, 2 lr
    assert len(list((project / "runs").rglob("metrics.csv"))) == 1 + 1 + 1 + 6


@pytest.mark.slow
def test_setup_again_test_and_commit_without_a_network(
    hour: tuple[Path, str], tmp_path: Path
) -> None:
    """`make lint` is run by tests/test_bakes.py; half a minute of it is mypy, which is there."""
    project, _ = hour
    bash("make setup", project)
    for line in (
        "make test ARGS=tests/test_task.py",
        ".venv/bin/mypy --version",
        "git add --all",
    ):
        bash(line, project, **OFFLINE)
    cache = {**OFFLINE, "PRE_COMMIT_HOME": str(tmp_path / "pre-commit"), "SKIP": "mypy"}
    bash(".venv/bin/pre-commit run --all-files", project, **cache)


@pytest.mark.slow
def test_wheels(hour: tuple[Path, str], tmp_path: Path) -> None:
    project, _ = hour
    to = shlex.quote(str(tmp_path))
    bash(f".venv/bin/python -m pip wheel -q --no-deps -w {to} . vendor/*.tar.gz", project)
    ours, library = map(ZipFile, sorted(tmp_path.glob("*.whl")))
    metadata = ours.read("my_project-0.1.0.dist-info/METADATA").decode()
    fields = email.message_from_string(metadata)
    assert (fields["Name"], fields["License-Expression"]) == ("my-project", "MIT")
    assert fields["Summary"] == DESCRIPTION
    assert email.utils.parseaddr(fields["Author-email"]) == (AUTHOR, "you@example.com")
    # A release is built of the same as what is in a project, and of drawings.
    uv, source = Path(sys.executable).with_name("uv"), shlex.quote(str(LIBRARY))
    bash(f"{shlex.quote(str(uv))} build -q -o {to}/release {source}", project)
    (release,) = map(ZipFile, (tmp_path / "release").glob("*.whl"))
    code, of_library, of_release = (
        {name for name in wheel.namelist() if not re.search("dist-info|/pictures/", name)}
        for wheel in (ours, library, release)
    )
    assert {name.partition("/")[0] for name in code} == {"my_project"}
    assert {name.partition("/")[0] for name in of_library} == {"hydra_plugins", "onecurve"}
    wanted = {"py.typed", "configs/trainer/default.yaml", "pages/strategies.md"}
    assert {f"onecurve/{name}" for name in wanted} <= of_library == of_release


def test_pictures_are_there_and_whole_and_fetch_nothing() -> None:
    shown = [TEMPLATE / name for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)]
    assert len(shown) >= 2
    assert [picture for picture in shown if not picture.is_file()] == []
    of_project = TEMPLATE / PROJECT / "docs/pictures"
    for picture in [*(TEMPLATE / "docs/pictures").glob("*.svg"), *of_project.glob("*.svg")]:
        text = picture.read_text(encoding="utf-8")
        assert "viewBox" in ElementTree.fromstring(text).attrib
        assert "prefers-" in text  # dark pages, or whoever wants no motion
        assert re.findall(r'(?:href="|url\()(?!#)[^")]*', text) == []
