"""What `make test` was told is not for commands that tests type; which files begin first."""

import os
from pathlib import Path

import pytest
from baking import bake

for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "PYTHON"):
    os.environ.pop(name, None)

# A file stays with one worker: the long ones begin, and the many short ones fill what is left.
# What test_project.py runs in a bake.
collect_ignore = ["project"]
FIRST = ("test_readme.py", "test_bakes.py", "test_project.py", "test_update.py")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bake with the answers that are suggested, which tests only read or copy."""
    return bake(tmp_path_factory.mktemp("plain") / "out")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
