"""The sizes of a mesh's five axes as plain numbers, for training, validation and the planner.

The axes are ordered from the outermost to the innermost: neighbouring ranks share layers by tensor
parallelism, which sends the most; replicas, which send the least, are farthest from each other.
"""

from itertools import product
from math import prod
from typing import NamedTuple


class Sizes(NamedTuple):
    """The number of ranks along each axis, or the coordinates of a rank."""

    replicate: int = 1
    """Copies of the network; each sees its own samples."""
    pipeline: int = 1
    """Groups of consecutive layers."""
    shard: int = 1
    """Shards of every parameter, gathered for use; each rank sees its own samples."""
    context: int = 1
    """Shards of every sequence."""
    tensor: int = 1
    """Shards of a layer's matrices; each rank computes its part of the layer."""

    @property
    def ranks(self) -> int:
        """The number of ranks in the mesh."""
        return prod(self)

    @property
    def data_parallel(self) -> int:
        """How many groups of ranks see different samples."""
        return self.replicate * self.shard

    @property
    def shares_layers(self) -> bool:
        """Whether ranks hold shards of the same layers."""
        return self.shard * self.context * self.tensor > 1

    def coordinates(self, rank: int) -> "Sizes":
        """The position of a rank along each axis."""
        coordinates = []
        for size in reversed(self):
            rank, coordinate = divmod(rank, size)
            coordinates.append(coordinate)
        return Sizes(*reversed(coordinates))

    def groups(self, *axes: str) -> list[list[int]]:
        """All groups of ranks that differ along these axes only."""
        groups: dict[Sizes, list[int]] = {}
        for rank, at in enumerate(product(*map(range, self))):
            group = Sizes(*at)._replace(**dict.fromkeys(axes, 0))
            groups.setdefault(group, []).append(rank)
        return list(groups.values())

    def words(self) -> str:
        """The axes with more than one rank, such as "shard 2 x tensor 4"."""
        used = [f"{axis} {size}" for axis, size in self._asdict().items() if size > 1]
        return " x ".join(used) or "one rank"


def filled(ranks: int, **sizes: int | str) -> Sizes:
    """Replace a size that is "auto" by the number of ranks that the others leave.

    Raises:
        ValueError: If the product of the sizes cannot be the number of ranks.
    """
    known = Sizes(**{axis: int(size) for axis, size in sizes.items() if size != "auto"})
    free = [axis for axis, size in sizes.items() if size == "auto"]
    rest = ranks // known.ranks
    if known.ranks * rest != ranks or not rest or (not free and rest != 1):
        raise ValueError(f"{known.words()} takes {known.ranks} ranks")
    return known._replace(**dict.fromkeys(free[:1], rest))
