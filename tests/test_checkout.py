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
from baking import files_of, run_in
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


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone(tmp_path_factory.mktemp("checkout") / "template")


@pytest.fixture(scope="module")
def of_clone(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project by the plainest of commands."""
    return bake_by("cookiecutter", str(template), tmp_path_factory.mktemp("clone") / "out")


@pytest.mark.parametrize("way", ["clone", "relative path", "address", "cruft", "zip"])
def test_each_way_to_bake_brings_the_archive_of_its_commit(
    template: Path, of_clone: Path, tmp_path: Path, way: str
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
    project = of_clone if way == "clone" else bake_by(command, typed, tmp_path / "out")
    assert archive_of(project).name == f"onecurve-0.2.0+{label}.tar.gz"
    if way == "zip":
        assert not (project / ".cruft.json").exists()
    else:
        state = json.loads((project / ".cruft.json").read_text())
        assert state["commit"] == commit
        # cruft writes it itself, as a path.
        known = {typed, typed.removeprefix("file://")} if "://" in typed else {str(template)}
        assert state["template"] in known
        assert state["context"]["cookiecutter"]["package_name"] == "my_project"


def test_the_archive_is_small_and_has_the_same_bytes_again(
    template: Path, of_clone: Path, tmp_path: Path
) -> None:
    first = archive_of(of_clone)
    second = archive_of(bake_by("cookiecutter", str(template), tmp_path))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size <= MAX_BYTES
    with tarfile.open(first) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "PKG-INFO", "src/onecurve/py.typed", "docs/strategies.md"} <= names
    assert [name for name in names if re.search(r"tests/|__pycache__|egg-info", name)] == []


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
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert [name.partition("/")[2] for name in names if "mine" in name] == ["src/onecurve/mine.py"]


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
    assert "vendor" not in "".join(
        (project / name).read_text()
        for name in files_of(project) - {".cruft.json"}
        if not name.endswith(".png")
    )
