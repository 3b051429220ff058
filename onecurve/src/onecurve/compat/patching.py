"""Replaces a method or an attribute of one object for the length of a context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MISSING = object()


@contextmanager
def replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Replace an attribute or a method of one object, and restore it afterwards."""
    before = vars(owner).get(name, MISSING)
    setattr(owner, name, other)
    try:
        yield
    finally:
        if before is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
