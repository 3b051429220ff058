"""What a strategy changes about a task: what a call of one of its methods does, for a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Let something else stand for a method, or an attribute, of this one object meanwhile."""
    before = vars(owner).get(name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
