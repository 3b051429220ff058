"""The README's commands of a fresh clone."""

import re

import pytest
from baking import TEMPLATE
from readme import TRY_MORE, bash


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "least"),
    [("make demo", 0.97), pytest.param(TRY_MORE.strip(), 0.8, marks=pytest.mark.long)],
)
def test_demo(line: str, least: float) -> None:
    """In the project that `make test` has just baked, and which other tests use: -o bake."""
    short = line.replace('ARGS="', 'ARGS="trainer.max_epochs=3 ')
    shown = bash(f"{short} -o bake", TEMPLATE)
    assert "Training finished" in shown
    assert float(re.search(r"test/acc\W+([\d.]+)", shown)[1]) > least  # type: ignore[index]
    assert "is in build/my-project" in shown
