"""The release notes of a tag, and the version that all files name."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from baking import LIBRARY, TEMPLATE, run_in

NOTES = "### To update\n\n- Type `make update`.\n"
CHANGELOG = (
    f"# Changelog\n\n## Unreleased\n\n- No.\n\n## 0.3.0 (2027)\n\n{NOTES}\n## 0.3.0rc1\n\n- Old.\n"
)
FILES = {
    "CHANGELOG.md": CHANGELOG,
    "cookiecutter.json": json.dumps({"_version": "0.3.0"}),
    "onecurve/pyproject.toml": '[project]\nversion = "0.3.0"\n',
}
TAG = "error: the tag is {}, but cookiecutter.json says 0.3.0: tag v0.3.0\n"
OLDER = {name: text.replace("0.3.0", "0.2.0") for name, text in FILES.items()}


@pytest.mark.parametrize(
    ("tag", "older", "line"),
    [
        ("v0.3.0", "", ""),
        *((tag, "", TAG.format(tag)) for tag in ("v0.3.1", "0.3.0", "v0.3")),
        ("v0.3.0", "onecurve/pyproject.toml", "onecurve/pyproject.toml says 0.2.0"),
        ("v0.3.0", "CHANGELOG.md", "error: CHANGELOG.md has nothing under '## 0.3.0'"),
    ],
)
def test_the_notes_are_the_section_of_the_tag_or_it_is_refused(
    tmp_path: Path, tag: str, older: str, line: str
) -> None:
    shutil.copytree(TEMPLATE / ".ci", tmp_path / ".ci")
    (tmp_path / "onecurve").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(OLDER[name] if name == older else text)
    done = run_in(tmp_path, sys.executable, ".ci/release_notes.py", tag)
    assert (done.returncode, done.stdout) == (bool(line), "" if line else NOTES), done.stderr
    assert line in done.stderr


def test_one_version_everywhere() -> None:
    version = json.loads((TEMPLATE / "cookiecutter.json").read_text())["_version"]
    assert f'\nversion = "{version}"\n' in (LIBRARY / "pyproject.toml").read_text()
    assert f"\nversion: {version}\n" in (TEMPLATE / "CITATION.cff").read_text()
    major, minor = map(int, version.split(".")[:2])
    project = (TEMPLATE / "{{cookiecutter.project_slug}}/pyproject.toml").read_text()
    assert f">={major}.{minor},<{major}.{minor + 1}" in project
