"""Optional attributes and methods of data modules that displays use."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class NamesClasses(Protocol):
    """A data module whose labels mean something.

    Attributes:
        class_names: What the labels 0, 1, ... mean.
    """

    class_names: Sequence[str]


@runtime_checkable
class NamesTargets(Protocol):
    """A data module whose targets are no classes, but can be said: captions, for example."""

    def titles(self, targets: Tensor) -> list[str]:
        """A line for each of the targets (N, ...)."""


@runtime_checkable
class Denormalizes(Protocol):
    """A data module that can show what enters the network as it was."""

    def denormalize(self, inputs: Tensor) -> Tensor:
        """Images (N, C, H, W) in 0..1 out of what it made of them."""
