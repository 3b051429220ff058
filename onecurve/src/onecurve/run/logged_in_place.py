"""A logged value that lies where it is counted up already is not moved there.

Lightning moves what it has counted to each new value's device, at every `self.log`. That looks
through all it keeps and copies it, also where there is nothing to move.
"""

from typing import Any

import torch

from ..compat.of_lightning import ResultMetric

_moved = ResultMetric.to


def log_in_place() -> None:
    """Let Lightning move only what lies elsewhere."""
    ResultMetric.to = _to  # type: ignore[method-assign]


def _to(self: ResultMetric, *args: Any, **kwargs: Any) -> ResultMetric:
    # What it counts in, its default and its number of samples are moved together.
    to_device = len(args) == 1 and isinstance(args[0], torch.device) and not kwargs
    if to_device and self.is_tensor and self.value.device == args[0]:
        return self
    return _moved(self, *args, **kwargs)
