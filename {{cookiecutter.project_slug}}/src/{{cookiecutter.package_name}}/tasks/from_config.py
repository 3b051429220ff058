"""What a task is made of, built or still described."""

from collections.abc import Mapping
from typing import Any

from hydra.utils import instantiate


def built(part: Any) -> Any:
    """A part as it is, or what its configuration describes.

    A run builds the parts of its task itself. Lightning's `load_from_checkpoint` hands over their
    configuration, which is all that a checkpoint holds of them.
    """
    return instantiate(part) if isinstance(part, Mapping) else part
