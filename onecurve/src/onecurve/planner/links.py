"""What the ranks of a mesh tell each other: bytes by axis and link, and the time that it takes."""

from typing import NamedTuple

from ..strategies.mesh.sizes import Sizes
from .hardware import Hardware


class Group(NamedTuple):
    """The ranks of one axis, or of neighbouring ones, that talk to each other."""

    size: int
    on_a_node: int
    """How many of them share a node."""

    @property
    def nodes(self) -> int:
        """Over how many nodes they are spread."""
        return -(-self.size // self.on_a_node)


class Message(NamedTuple):
    """What a rank sends, and how long it takes."""

    inside: float = 0.0
    """Bytes to ranks of its node."""
    between: float = 0.0
    """Bytes to other nodes."""
    seconds: float = 0.0

    def plus(self, other: "Message", times: float = 1.0) -> "Message":
        """Both, the other so often."""
        return Message(*(a + times * b for a, b in zip(self, other, strict=True)))


def group_of(sizes: Sizes, axis: str, per_node: int) -> Group:
    """The group of an axis; that of `shard` is of `context`, too, over which parameters are cut."""
    stride = {
        "tensor": 1,
        "context": sizes.tensor,
        "shard": sizes.tensor,
        "pipeline": sizes.tensor * sizes.context * sizes.shard,
        "replicate": sizes.tensor * sizes.context * sizes.shard * sizes.pipeline,
    }[axis]
    size = sizes.shard * sizes.context if axis == "shard" else getattr(sizes, axis)
    return Group(size, max(1, min(size, per_node // stride)))


def gather(size: float, group: Group, hardware: Hardware) -> Message:
    """All parts of so many bytes reach every rank; or, the other way, are summed into parts.

    Every rank passes on what it gets, as in a ring; each node has an adapter for each of its ranks.
    """
    if group.size == 1:
        return Message()
    share = size / group.size
    sent = share * (group.size - 1)
    to_nodes = share * (group.size - group.on_a_node) / group.on_a_node if group.nodes > 1 else 0.0
    seconds = max(
        sent / (hardware.inside * hardware.links) if group.on_a_node > 1 else 0.0,
        to_nodes / (hardware.between * hardware.links),
    )
    return Message(max(0.0, sent - to_nodes), to_nodes, seconds + hardware.latency * group.nodes)


def reduce(size: float, group: Group, hardware: Hardware) -> Message:
    """So many bytes of every rank are summed, and the sum reaches every rank."""
    return Message().plus(gather(size, group, hardware), 2)


def send(size: float, group: Group, hardware: Hardware) -> Message:
    """So many bytes go from a rank to the next of its group."""
    if group.size == 1:
        return Message()
    crosses = group.nodes > 1
    rate = (hardware.between if crosses else hardware.inside) * hardware.links
    seconds = size / rate + hardware.latency
    return Message(0.0, size, seconds) if crosses else Message(size, 0.0, seconds)
