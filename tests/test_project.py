"""A bake of each starter passes its own tests, and the template's in `project/`."""

import json
from pathlib import Path

import pytest
from baking import TEMPLATE, bake, checked, python_in

STARTERS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))["starter"]


# The default's own tests are run by `make test`.
@pytest.mark.parametrize(
    "files", [("configs", "refusals"), pytest.param(("docs",), marks=pytest.mark.long)]
)
def test_the_default_is_as_its_files_say(tmp_path: Path, files: tuple[str, ...]) -> None:
    paths = [f"checks/test_{file}.py" for file in files]
    assert "skipped" not in checked(bake(tmp_path / "out"), *paths)


@pytest.mark.long
@pytest.mark.parametrize("starter", STARTERS[1:])
def test_a_starter_passes_its_tests(tmp_path: Path, starter: str) -> None:
    project = bake(tmp_path / "out", starter=starter)
    shown = python_in(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert "skipped" not in shown + checked(project, "checks")
