"""The sizes of a mesh's five axes: plain numbers, for training, refusals and the planner.

The axes stand from the outermost to the innermost: ranks that are neighbours share layers that are
cut within, which send the most; replicas, which send the least, are farthest from each other.
"""

from itertools import product
from math import prod
from typing import NamedTuple


class Sizes(NamedTuple):
    """How many ranks there are along each axis, or which of them a rank is."""

    replicate: int = 1
    """Copies of the network, with samples of their own."""
    pipeline: int = 1
    """Parts of the sequence of layers."""
    shard: int = 1
    """Parts of every parameter, gathered to be used; with samples of their own."""
    context: int = 1
    """Parts of every sequence of positions."""
    tensor: int = 1
    """Parts of a layer's matrices, each of which does its part of the work."""

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return prod(self)

    @property
    def data_parallel(self) -> int:
        """How many groups of ranks see samples of their own."""
        return self.replicate * self.shard

    def coordinates(self, rank: int) -> "Sizes":
        """Which of the ranks along each axis a rank is."""
        found = []
        for size in reversed(self):
            rank, coordinate = divmod(rank, size)
            found.append(coordinate)
        return Sizes(*reversed(found))

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks that differ in nothing but in these axes, group by group."""
        groups: dict[Sizes, list[int]] = {}
        for rank, at in enumerate(product(*map(range, self))):
            group = Sizes(*at)._replace(**dict.fromkeys(axes, 0))
            groups.setdefault(group, []).append(rank)
        return list(groups.values())

    def words(self) -> str:
        """The axes of more than one rank, as in "shard 2 x tensor 4"."""
        used = [f"{axis} {size}" for axis, size in self._asdict().items() if size > 1]
        return " x ".join(used) or "one rank"


def filled(ranks: int, **sizes: int | str) -> Sizes:
    """Sizes of which at most one is "auto": what the others leave."""
    known = Sizes(**{axis: int(size) for axis, size in sizes.items() if size != "auto"})
    free = [axis for axis, size in sizes.items() if size == "auto"]
    rest = ranks // known.ranks
    if known.ranks * rest != ranks or not rest or (not free and rest != 1):
        raise ValueError(f"{known.words()} takes {known.ranks} ranks")
    return known._replace(**dict.fromkeys(free[:1], rest))
