"""Optional attributes and methods of data modules that displays use."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class NamesClasses(Protocol):
    """A data module whose labels have names.

    Attributes:
        class_names: What the labels 0, 1, ... mean.
    """

    class_names: Sequence[str]


@runtime_checkable
class NamesTargets(Protocol):
    """A data module whose targets are not classes but have a text, such as captions."""

    def titles(self, targets: Tensor) -> list[str]:
        """A line for each of the targets (N, ...)."""


@runtime_checkable
class Denormalizes(Protocol):
    """A data module that can turn the network's input back into images."""

    def denormalize(self, inputs: Tensor) -> Tensor:
        """Turn the network's input back into images (N, C, H, W) in 0..1."""
