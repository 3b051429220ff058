"""Which attempt of a run its ranks belong to: after a failure all of them are started again."""

from typing import NamedTuple


class Attempt(NamedTuple):
    """What the first process of a run has decided for all ranks of an attempt.

    Each rank that looked by itself might find another checkpoint, and torchelastic's agents count
    restarts each for itself.
    """

    number: int = 0
    """Restarts before it."""
    checkpoint: str | None = None
    """What the ranks go on from; None for what the configuration says."""


current = Attempt()
