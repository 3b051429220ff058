"""What `make test` was told is not for commands that tests type; which files begin first."""

import os

import pytest

for name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "PYTHON"):
    os.environ.pop(name, None)

# A file stays with one worker: the long ones begin, and the many short ones fill what is left.
# What test_project.py runs in a bake.
collect_ignore = ["project"]
FIRST = ("test_readme.py", "test_bakes.py", "test_project.py", "test_update.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
