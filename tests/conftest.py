"""What `make test` was told is not for commands that tests type; which files begin first."""

import os
from pathlib import Path

import pytest
from baking import bake

for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "PYTHON"):
    os.environ.pop(name, None)

collect_ignore = ["project"]  # what test_project.py runs in a bake
# A file stays with one of three workers, which begin with two each: the longest with a short one.
FIRST = ["readme", "project", "library_pages", "bakes", "demo", "docs_blocks"]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bake with the answers that are suggested, which tests only read or copy."""
    return bake(tmp_path_factory.mktemp("plain") / "out")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}.py": number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(FIRST)))
