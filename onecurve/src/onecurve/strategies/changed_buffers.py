"""Buffers that change more often than in one process, where a batch is computed in parts."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import say, some_of


def changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    """The names of those that are not what they were."""
    return [name for name, value in before.items() if not torch.equal(value, now[name])]


def report_changed(strategy: str, part: str, names: Sequence[str]) -> None:
    """Say which buffers will not be those of `single`.

    Args:
        strategy: Its name.
        part: What it cuts a batch into.
        names: Of buffers that training changes.
    """
    if names:
        say(
            f"strategy={strategy}: {some_of(names)} will differ from strategy=single: "
            f"they change with each {part}, as BatchNorm's statistics do"
        )
