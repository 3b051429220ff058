"""What each starter brings passes its own tests; `make test-starters` runs those of every file."""

import json
from pathlib import Path

import pytest
from baking import PROJECT, TEMPLATE, bake, python_in, scripts_in

QUESTIONS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
ALL_STRATEGIES = "tests/test_strategies.py::test_every_loss_is_that_of_single"


# The default is what `make test` bakes, and tests whole.
@pytest.mark.long
@pytest.mark.slow
def test_the_bare_one_trains(tmp_path: Path) -> None:
    project = bake(tmp_path / "out", starter="bare")
    shown = scripts_in(project, "train.py trainer.max_epochs=1 strategy=pipeline")
    assert shown.count("Training finished") == 1


@pytest.mark.long
@pytest.mark.parametrize("starter", QUESTIONS["starter"][1:])
def test_a_starter_passes_its_tests(tmp_path: Path, starter: str) -> None:
    project = bake(tmp_path / "out", starter=starter)
    own = sorted((TEMPLATE / PROJECT / "starters" / starter / "tests").glob("test_*.py"))
    assert own
    tests = [f"tests/{path.name}" for path in own] + [f"{ALL_STRATEGIES}[pipeline]"]
    shown = python_in(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert "skipped" not in shown
