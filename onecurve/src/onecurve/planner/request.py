"""What is planned: a network, a batch, and the devices that train it."""

from typing import NamedTuple

from .hardware import Hardware
from .network import Network


class StateSize(NamedTuple):
    """How much an optimizer keeps."""

    copies: float
    """Numbers for each number of a parameter."""
    bytes: float
    """Of scalars that it keeps for each parameter, such as a count of steps."""


ADAMW = StateSize(2, 4)


class Request(NamedTuple):
    """What is planned."""

    network: Network
    hardware: Hardware
    ranks: int
    per_node: int
    """Ranks of a node."""
    batch: int
    """Samples of a step, over all ranks."""
    state: StateSize = ADAMW
    schedules: tuple[str, ...] = ("1f1b", "interleaved_1f1b", "zbv")
    """Schedules that pipelines may use."""
    microbatches: int | None = None
    """Of a pipeline; None for the best number."""
    checkpointing: tuple[str, ...] = ("none", "selective", "full")
    """The first that fits is taken."""
    free: float = 0.08
    """Share of the memory that is left free."""

    @property
    def room(self) -> float:
        """Bytes that a rank may hold."""
        each = self.hardware.memory
        if self.hardware.shared_cores:
            # The ranks of a CPU share its memory.
            each /= min(self.ranks, self.per_node)
        return each * (1 - self.free)

    @property
    def crowd(self) -> float:
        """How many ranks take turns on a core."""
        cores = self.hardware.shared_cores
        return max(1.0, min(self.ranks, self.per_node) / cores) if cores else 1.0


class Choice(NamedTuple):
    """How a mesh is run, where there are several ways."""

    schedule: str
    """Of a pipeline; empty without one."""
    microbatches: int
    checkpointing: str
