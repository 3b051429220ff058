"""What a plan is made for."""

from typing import NamedTuple

from .hardware import Hardware
from .network import Network
from .optimizer_state import ADAMW, StateSize


class Request(NamedTuple):
    """A network, a batch and the devices that train it."""

    network: Network
    hardware: Hardware
    ranks: int
    per_node: int
    """Ranks of a node."""
    batch: int
    """Samples of a step, over all ranks."""
    state: StateSize = ADAMW
    schedules: tuple[str, ...] = ("1f1b", "interleaved_1f1b", "zbv")
    """Those that pipelines may have."""
    microbatches: int | None = None
    """Of a pipeline; None takes the best."""
    checkpointing: tuple[str, ...] = ("none", "selective", "full")
    """The first that fits is taken."""
    free: float = 0.08
    """Share of the memory that is left."""
    reshard: bool = True
    """Whether gathered parameters are freed between forward and backward pass."""

    @property
    def room(self) -> float:
        """Bytes that a rank may hold."""
        each = self.hardware.memory
        if self.hardware.at_once:
            # The ranks of a CPU share its memory.
            each /= min(self.ranks, self.per_node)
        return each * (1 - self.free)

    @property
    def crowd(self) -> float:
        """How many ranks take turns on what computes at a time."""
        at_once = self.hardware.at_once
        return max(1.0, min(self.ranks, self.per_node) / at_once) if at_once else 1.0


class Choice(NamedTuple):
    """How a mesh runs, where there is a choice."""

    schedule: str
    """Of a pipeline; empty without one."""
    microbatches: int
    checkpointing: str
