"""What each starter brings passes its own tests; `make test-starters` runs those of every file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from baking import PROJECT, TEMPLATE, bake, environment_of

QUESTIONS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
ALL_STRATEGIES = "tests/test_strategies.py::test_every_loss_is_that_of_single"


# The default is what `make test` bakes, and tests whole.
@pytest.mark.slow
@pytest.mark.parametrize("starter", QUESTIONS["starter"][1:])
def test_a_starter_passes_its_tests(tmp_path: Path, starter: str) -> None:
    project = bake(tmp_path / "out", starter=starter)
    own = sorted((TEMPLATE / PROJECT / "starters" / starter / "tests").glob("test_*.py"))
    assert own
    tests = [f"tests/{path.name}" for path in own] + [f"{ALL_STRATEGIES}[pipeline]"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=project,
        env=environment_of(project),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
