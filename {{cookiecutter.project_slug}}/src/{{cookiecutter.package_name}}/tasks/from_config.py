"""Builds the parts of a task from their configuration."""

from collections.abc import Mapping
from typing import Any

from hydra.utils import instantiate


def built(part: Any) -> Any:
    """A part that is built already, or the object that its configuration describes.

    A run builds the parts of its task itself. Lightning's `load_from_checkpoint` passes their
    configuration, which is what a checkpoint holds.
    """
    return instantiate(part) if isinstance(part, Mapping) else part
