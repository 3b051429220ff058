"""Wrappers around a user's loader, sampler or data set that forward its attributes."""

from collections.abc import Iterator
from typing import Any


class Proxy:
    """Forwards every attribute that it does not define to the wrapped object.

    Attributes:
        _of: The name of the attribute that holds the wrapped object.
    """

    _of: str

    def __getattr__(self, name: str) -> Any:
        if name == self._of:  # not set yet during unpickling
            raise AttributeError(name)
        return getattr(getattr(self, self._of), name)

    def __len__(self) -> int:
        return len(getattr(self, self._of))


class ResumedSampler(Proxy):
    """Wraps a sampler whose next pass yields only the given rest of an epoch."""

    _of = "inner"

    def __init__(self, inner: Any, left: Iterator[Any] | None = None) -> None:
        self.inner = inner
        self.left = left

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers makes two iterators, and reads one of them.
        left, self.left = self.left, None
        yield from iter(self.inner) if left is None else left
