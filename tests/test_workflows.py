"""What GitHub reads fits its schemas, and an action is a commit, the same one everywhere."""

import re
import sys
from pathlib import Path

import pytest
from baking import PROJECT, TEMPLATE, run_in

GITHUB = [TEMPLATE / ".github", TEMPLATE / PROJECT / ".github"]
FILES = {
    "github-workflows": [file for folder in GITHUB for file in folder.glob("workflows/*.yml")],
    "dependabot": [folder / "dependabot.yml" for folder in GITHUB],
    "github-issue-forms": [
        TEMPLATE / f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "wish")
    ],
    "github-issue-config": [TEMPLATE / ".github/ISSUE_TEMPLATE/config.yml"],
    "citation-file-format": [TEMPLATE / "CITATION.cff"],
    "gitlab-ci": [TEMPLATE / PROJECT / ".gitlab-ci.yml"],
}


@pytest.mark.parametrize("schema", FILES)
def test_files_fit_their_schemas(schema: str, tmp_path: Path) -> None:
    """The project's are read as they lie here: their braces stand between quotes or in names."""
    copies = [tmp_path / f"{number}.yml" for number in range(len(FILES[schema]))]
    for copy, file in zip(copies, FILES[schema], strict=True):
        text = file.read_text(encoding="utf-8")
        copy.write_text(text.replace("{{ cookiecutter.python }}", "3.12"))
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}")
    done = run_in(tmp_path, *check, *copies)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actions_are_commits() -> None:
    """A tag can be moved to other code, a commit cannot; dependabot reads the version behind it."""
    used: dict[str, set[str]] = {}
    for file in FILES["github-workflows"]:
        for line in re.findall(r"uses: (.*)", file.read_text(encoding="utf-8")):
            if not line.startswith("./"):
                assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), (file, line)
                used.setdefault(line.partition("@")[0], set()).add(line)
    assert {"actions/checkout", "actions/setup-python", "pypa/gh-action-pypi-publish"} <= set(used)
    assert [lines for lines in used.values() if len(lines) > 1] == []
