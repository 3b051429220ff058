"""Runs of blocks that pass pieces of the sequence to each other.

A run cuts the sequence where its first block begins, and puts it together where its last one ends:
outside of it nothing is changed.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from .collectives import Group, SequenceRegion


class Run(NamedTuple):
    """Blocks one after the other, and what passes between them."""

    names: list[str]
    region: SequenceRegion


def runs_of(parts: Mapping[str, nn.Module], names: Sequence[str], group: Group) -> list[Run]:
    """Neighbours in one nn.Sequential or nn.ModuleList form a run; any other block one of its own.

    Args:
        parts: All modules by name.
        names: Those of the blocks.
        group: The ranks.
    """
    wanted, runs = set(names), []
    holders = {name.rpartition(".")[0]: None for name in names}
    for holder in holders:
        run: list[str] = []
        ordered = isinstance(parts[holder], nn.Sequential | nn.ModuleList)
        for child, _ in parts[holder].named_children():
            name = f"{holder}.{child}".lstrip(".")
            if run and (name not in wanted or not ordered):
                runs.append(Run(run, SequenceRegion(group)))
                run = []
            if name in wanted:
                run.append(name)
        if run:
            runs.append(Run(run, SequenceRegion(group)))
    return runs
