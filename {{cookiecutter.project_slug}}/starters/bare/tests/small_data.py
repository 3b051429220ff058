"""What the tests need to try every choice: files in an empty folder, and mistakes to make."""

from pathlib import Path

import pytest

# What is typed, and what the line must say.
MISTAKES = {
    "data.num_samples=0": "data.num_samples=0: must be a whole number from 10",
    "model.width=0": "model.width=0: must be a whole number from 1",
}


def write_broken(folder: Path) -> None:
    """Write files that no run can be made of, and name them above: here are none."""


@pytest.fixture
def small_data(tmp_path: Path) -> None:
    """Write files that a run needs, where it looks in an empty folder: here are none."""
