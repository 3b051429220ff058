"""A bake of each starter passes its own tests, and the template's in `project/`."""

import json
from pathlib import Path

import pytest
from baking import TEMPLATE, bake, checked, python_in, scripts_in

STARTERS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))["starter"]


def test_a_project_of_the_defaults_is_small(plain: Path) -> None:
    files = [path for path in plain.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert len(files) <= 104
    lines = {path: len(path.read_text().splitlines()) for path in files if path.suffix == ".py"}
    tests = sum(count for path, count in lines.items() if "tests" in path.parts)
    assert tests <= 350
    assert sum(lines.values()) - tests <= 1300


# The default's own tests are run by `make test`.
@pytest.mark.parametrize(
    "files", [("configs", "refusals"), pytest.param(("docs",), marks=pytest.mark.long)]
)
def test_the_default_is_as_its_files_say(tmp_path: Path, files: tuple[str, ...]) -> None:
    paths = [f"checks/test_{file}.py" for file in files]
    assert "skipped" not in checked(bake(tmp_path / "out"), *paths)


@pytest.mark.long
@pytest.mark.slow
def test_the_bare_one_trains(tmp_path: Path) -> None:
    project = bake(tmp_path / "out", starter="bare")
    shown = scripts_in(project, "train.py trainer.max_epochs=1 strategy=pipeline")
    assert shown.count("Training finished") == 1


@pytest.mark.long
@pytest.mark.parametrize("starter", STARTERS[1:])
def test_a_starter_passes_its_tests(tmp_path: Path, starter: str) -> None:
    project = bake(tmp_path / "out", starter=starter)
    shown = python_in(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert "skipped" not in shown + checked(project, "checks")
