"""A limit for keys that name a checkpoint: it is there, and whole."""

from dataclasses import dataclass

from ..limits import Existing
from .file import damage


@dataclass(frozen=True)
class ExistingCheckpoint(Existing):
    """A checkpoint that a training run has written to its end."""

    def refusal(self, value: str) -> str | None:
        """What is wrong with a path; None if nothing is."""
        if missing := super().refusal(value):
            return missing
        if reason := damage(value):
            return f"is no complete checkpoint: {reason}; give {self.wanted}"
        return None
