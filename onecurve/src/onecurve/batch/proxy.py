"""What stands for a loader, sampler or data set that the user wrote, and has its attributes."""

from collections.abc import Iterator
from typing import Any


class Proxy:
    """Every attribute that it does not have itself is that of the object it stands for.

    Attributes:
        _of: The name of the attribute that holds this object.
    """

    _of: str

    def __getattr__(self, name: str) -> Any:
        if name == self._of:  # not there yet while this is unpickled
            raise AttributeError(name)
        return getattr(getattr(self, self._of), name)

    def __len__(self) -> int:
        return len(getattr(self, self._of))


class ResumedSampler(Proxy):
    """Stands for a sampler, of whose next pass a part is left."""

    _of = "inner"

    def __init__(self, inner: Any, left: Iterator[Any] | None = None) -> None:
        self.inner = inner
        self.left = left

    def __iter__(self) -> Iterator[Any]:
        # An iterator over processes asks for two of these, and reads one.
        left, self.left = self.left, None
        yield from iter(self.inner) if left is None else left
