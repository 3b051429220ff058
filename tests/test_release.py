"""A tag, what is told about it, and the library's wheel, which trains where nothing else lies."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from baking import LIBRARY, TEMPLATE, run_in

CHANGELOG = """# Changelog

## Unreleased

- Nothing yet.

## 0.3.0 (2027-01-01)

### To update

- Type `make update`.

## 0.3.0rc1

- Old.
"""


def notes(top: Path, tag: str) -> subprocess.CompletedProcess[str]:
    return run_in(top, sys.executable, ".ci/release_notes.py", tag)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A template of version 0.3.0."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(TEMPLATE / ".ci/release_notes.py", tmp_path / ".ci")
    (tmp_path / "cookiecutter.json").write_text(json.dumps({"_version": "0.3.0"}))
    (tmp_path / "onecurve").mkdir()
    (tmp_path / "onecurve/pyproject.toml").write_text('[project]\nversion = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_the_notes_are_the_section_of_the_tag(top: Path) -> None:
    done = notes(top, "v0.3.0")
    assert done.stdout == "### To update\n\n- Type `make update`.\n", done.stderr


@pytest.mark.parametrize("tag", ["v0.3.1", "0.3.0", "v0.3"])
def test_another_tag_is_refused(top: Path, tag: str) -> None:
    done = notes(top, tag)
    assert (done.returncode, done.stdout) == (1, "")
    said = f"error: the tag is {tag}, but cookiecutter.json says 0.3.0: tag v0.3.0\n"
    assert done.stderr == said


def test_a_library_of_another_version_is_refused(top: Path) -> None:
    (top / "onecurve/pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    done = notes(top, "v0.3.0")
    assert done.returncode == 1
    assert "onecurve/pyproject.toml says 0.2.0" in done.stderr


def test_a_release_that_says_nothing_is_refused(top: Path) -> None:
    (top / "CHANGELOG.md").write_text(CHANGELOG.replace("## 0.3.0 (", "## 0.2.9 ("))
    done = notes(top, "v0.3.0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: CHANGELOG.md has nothing under '## 0.3.0'")


def test_one_version_everywhere() -> None:
    version = json.loads((TEMPLATE / "cookiecutter.json").read_text())["_version"]
    assert f'\nversion = "{version}"\n' in (LIBRARY / "pyproject.toml").read_text()
    assert f"\nversion: {version}\n" in (TEMPLATE / "CITATION.cff").read_text()


@pytest.mark.slow
def test_the_wheel_trains(tmp_path: Path) -> None:
    """Built from the sdist, laid down alone; its page's script runs with it. Needs the network."""
    beside = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    uv = [str(shutil.which("uv", path=beside)), "--quiet"]
    (tmp_path / "elsewhere").mkdir()
    build = [*uv, "build", "--out-dir", str(tmp_path), str(LIBRARY)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("onecurve-*.whl")
    assert len(list(tmp_path.glob("onecurve-*.tar.gz"))) == 1
    installed = tmp_path / "installed"
    where = ["--no-deps", "--target", str(installed), "--python", sys.executable]
    subprocess.run([*uv, "pip", "install", *where, str(wheel)], check=True)
    page = (installed / "onecurve-0.2.0.dist-info/METADATA").read_text(encoding="utf-8")
    script = re.findall(r"```python\n(import lightning.*?)```", page, re.DOTALL)[0]
    where_from = "    print('from', onecurve.__file__, onecurve.__version__)\n"
    (tmp_path / "elsewhere/script.py").write_text(script + where_from)
    alone = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = run_in(tmp_path / "elsewhere", sys.executable, "script.py", env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "last loss:" in done.stdout
    assert f"from {installed}/onecurve/__init__.py 0.2.0" in done.stdout
