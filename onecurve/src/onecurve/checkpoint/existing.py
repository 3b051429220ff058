"""Limits for keys that name a checkpoint: it is there, and whole, or at an address."""

from dataclasses import dataclass

from ..limits import Existing
from .address import is_address, refusal
from .file import damage


@dataclass(frozen=True)
class ExistingOrAddress(Existing):
    """A file that is there, or an address, where nothing is asked for yet."""

    def refusal(self, value: str) -> str | None:
        """What is wrong with a path or an address; None if nothing is."""
        return refusal(value) if is_address(value) else super().refusal(value)


@dataclass(frozen=True)
class ExistingCheckpoint(ExistingOrAddress):
    """A checkpoint that a training run has written to its end."""

    def refusal(self, value: str) -> str | None:
        """What is wrong with a path or an address; None if nothing is."""
        if missing := super().refusal(value):
            return missing
        if not is_address(value) and (reason := damage(value)):
            return f"is no complete checkpoint: {reason}; give {self.wanted}"
        return None
