"""What is passed down from the command to its ranks beside the configuration."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from .directory import Held


class Attempt(NamedTuple):
    """Which attempt of a run its ranks belong to; after a failure all of them are started again.

    Rank 0 decides it for all: each rank that looked by itself might find another checkpoint.
    """

    number: int = 0
    """Restarts before it."""
    checkpoint: str | None = None
    """What the ranks resume from; None for what the configuration says."""


class Members:
    """The processes of a run that were started apart from each other: this one alone.

    `onecurve.launch.meeting.Meeting` is several: the ranks of torchrun or srun, or several nodes.
    """

    index = 0
    count = 1

    @property
    def is_first(self) -> bool:
        """Whether this process makes the run directory and writes the record."""
        return self.index == 0

    def broadcast(self, key: str, find_out: Callable[[], Any]) -> Any:
        """What the first member finds out, for all of them.

        Args:
            key: Of its own for every question.
            find_out: Called in the first process; returns what JSON can hold.

        Raises:
            UserError: In all of them, if `find_out` does.
        """
        return find_out()

    def gather(self, key: str, value: Any) -> list[Any]:
        """The values of all members, in their order, on the first; nothing on the others."""
        return [value]

    def reports_failure(self) -> bool:
        """Whether this process shows why the run failed: of several ranks, the first to ask."""
        return True


@dataclass(frozen=True)
class RunContext:
    """One job: made when its configuration has been checked, and passed down from there.

    Attributes:
        run_dir: Where the run leaves its files.
        members: The processes that are this run, as far as they were started apart.
        attempt: What its ranks resume from, after they were started again.
        held: The lock of the run directory, in the process that made it.
        listening: Where a rank leaves its PID while a signal only sets a flag in it; None where no
            agent of ours passes signals on.
    """

    run_dir: Path
    members: Members = field(default_factory=Members)
    attempt: Attempt = field(default_factory=Attempt)
    held: Held | None = None
    listening: Path | None = None

    def for_ranks(self) -> "RunContext":
        """What can be sent to ranks: without what belongs to this process."""
        return replace(self, members=Members(), held=None)
