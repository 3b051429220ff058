"""Replaces a method or an attribute of one object for the length of a context."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from .patches import OTHERS, REPLACED

MISSING = object()


@contextmanager
def replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Replace an attribute or a method of one object, and restore it afterwards."""
    if isinstance(owner, ModuleType | type):
        path = owner.__name__ if isinstance(owner, ModuleType) else _path_of(owner)
        is_theirs = path.partition(".")[0] in OTHERS
        assert not is_theirs or f"{path}.{name}" in REPLACED, f"{path}.{name} is not in patches.py"
    before = vars(owner).get(name, MISSING)
    setattr(owner, name, other)
    try:
        yield
    finally:
        if before is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _path_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
