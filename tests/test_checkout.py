"""How a project gets the library: from a release, or as an archive of the checkout it came from."""

import json
import os
import re
import shutil
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from baking import run_in
from clones import clone, git

BIN = Path(sys.executable).parent
MAX_BYTES = 460 * 1024


def bake_by(command: str, template: str, folder: Path) -> Path:
    """What somebody types, in a folder and with a home of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    create = ["create"] if command == "cruft" else []
    home = os.environ | {"HOME": str(folder.parent / "home")}
    done = run_in(folder, BIN / command, *create, template, "--no-input", env=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "my-project"


def archive_of(project: Path) -> Path:
    """The one archive, which pyproject.toml and constraints.txt name."""
    (archive,) = (project / "vendor").iterdir()
    settings = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["uv"]
    assert settings["sources"]["onecurve"] == {"path": f"vendor/{archive.name}"}
    version = archive.name.removeprefix("onecurve-").removesuffix(".tar.gz")
    assert (project / "constraints.txt").read_text().endswith(f"\nonecurve=={version}\n")
    return archive


def contents(archive: Path) -> set[str]:
    """The files in it, without the folder that all are in."""
    with tarfile.open(archive) as packed:
        return {name.partition("/")[2] for name in packed.getnames()}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("checkout") / "template")


@pytest.mark.parametrize("way", ["clone", "relative path", "address", "cruft", "zip"])
def test_each_way_to_bake_brings_the_archive_of_its_commit(
    template: Path, tmp_path: Path, way: str
) -> None:
    commit, command, typed = git(template, "rev-parse", "HEAD"), "cookiecutter", str(template)
    label = f"g{commit[:7]}"
    if way == "relative path":
        typed = os.path.relpath(template, tmp_path / "out")
    elif way in ("address", "cruft"):
        git(tmp_path, "clone", "--quiet", "--bare", str(template), "bare.git")
        command = "cruft" if way == "cruft" else command
        typed = f"file://{tmp_path}/bare.git"
    elif way == "zip":
        label = "archive"
        typed = f"{tmp_path}/t.zip"
        git(template, "archive", "--prefix=t/", "--output", typed, "HEAD")
    project = bake_by(command, typed, tmp_path / "out")
    archive = archive_of(project)
    assert archive.name == f"onecurve-0.2.0+{label}.tar.gz"
    if way == "zip":
        assert not (project / ".cruft.json").exists()
        return
    state = json.loads((project / ".cruft.json").read_text())
    assert state["commit"] == commit
    # cruft writes it itself, as a path.
    known = {typed, typed.removeprefix("file://")} if "://" in typed else {str(template)}
    assert state["template"] in known
    assert state["context"]["cookiecutter"]["package_name"] == "my_project"
    if way == "clone":
        again = archive_of(bake_by("cookiecutter", typed, tmp_path / "again"))
        assert archive.read_bytes() == again.read_bytes()
        assert archive.stat().st_size <= MAX_BYTES
        names = contents(archive)
        pages = {"PKG-INFO", "src/onecurve/py.typed", "docs/strategies.md"}
        assert {"pyproject.toml", *pages} <= names
        assert not [name for name in names if re.search(r"tests/|__pycache__|egg-info", name)]


def test_a_change_that_is_not_committed_is_in_the_label(template: Path, tmp_path: Path) -> None:
    dirty = tmp_path / "template"
    shutil.copytree(template, dirty)
    (dirty / "README.md").write_text("of the template, not of the library")
    commit = git(dirty, "rev-parse", "--short=7", "HEAD")
    project = bake_by("cookiecutter", str(dirty), tmp_path / "a")
    assert archive_of(project).name == f"onecurve-0.2.0+g{commit}.tar.gz"
    (dirty / "onecurve/src/onecurve/mine.py").write_text("")
    (dirty / "onecurve/src/onecurve/__pycache__").mkdir()
    (dirty / "onecurve/src/onecurve/__pycache__/mine.pyc").write_text("")
    archive = archive_of(bake_by("cookiecutter", str(dirty), tmp_path / "b"))
    assert archive.name == f"onecurve-0.2.0+g{commit}.dirty.tar.gz"
    assert [name for name in contents(archive) if "mine" in name] == ["src/onecurve/mine.py"]


def test_a_release_is_depended_on_by_its_version_alone(template: Path, tmp_path: Path) -> None:
    release = tmp_path / "template"
    shutil.copytree(template, release)
    git(release, "tag", "v0.2.0")
    project = bake_by("cookiecutter", str(release), tmp_path / "out")
    assert not (project / "vendor").exists()
    metadata = tomllib.loads((project / "pyproject.toml").read_text())
    assert "uv" not in metadata["tool"]
    assert "onecurve[hydra,sweep,wandb]>=0.2,<0.3" in metadata["project"]["dependencies"]
    assert (project / "constraints.txt").read_text().endswith("\nonecurve==0.2.0\n")
