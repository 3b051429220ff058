"""Optional attributes and methods of a data module that displays use."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class NamesClasses(Protocol):
    """A data module with names for its classes.

    Attributes:
        class_names: What the labels 0, 1, ... mean.
    """

    class_names: Sequence[str]


@runtime_checkable
class NamesTargets(Protocol):
    """A data module whose targets have titles although they are not classes, such as captions."""

    def titles(self, targets: Tensor) -> list[str]:
        """A line for each of the targets (N, ...)."""


@runtime_checkable
class Denormalizes(Protocol):
    """A data module that can undo its normalization."""

    def denormalize(self, inputs: Tensor) -> Tensor:
        """Turn network inputs back into images (N, C, H, W) in 0..1."""
