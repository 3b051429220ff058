"""Reports buffers that differ from one process because a batch is computed in parts."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import say, some_of


def changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    """Names of the buffers whose values have changed."""
    return [name for name, value in before.items() if not torch.equal(value, now[name])]


def report_changed(strategy: str, part: str, names: Sequence[str]) -> None:
    """Print which buffers will differ from those under `single`.

    Args:
        strategy: Name of the strategy.
        part: What the strategy splits a batch into.
        names: Names of the buffers that training changes.
    """
    if names:
        say(
            f"strategy={strategy}: {some_of(names)} will differ from strategy=single: "
            f"they change with each {part}, as BatchNorm's statistics do"
        )
