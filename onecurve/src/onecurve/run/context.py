"""What the command passes down to its ranks beside the configuration."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .record import LockedDirectory


class Attempt(NamedTuple):
    """The attempt of a run that ranks belong to; after a failure all of them are restarted.

    Rank 0 decides for all: ranks that looked by themselves might find different checkpoints.
    """

    number: int = 0  # the number of restarts before it
    checkpoint: str | None = None
    """What the ranks resume from; None for the configuration's `resume`."""


class Members:
    """The processes of a run that were started separately: this one alone.

    `onecurve.launch.meeting.Meeting` is several: the ranks of torchrun or srun, or several nodes.
    """

    index = 0
    count = 1

    @property
    def is_first(self) -> bool:
        """Whether this process creates the run directory and writes the record."""
        return self.index == 0

    def broadcast(self, key: str, find_out: Callable[[], Any]) -> Any:
        """Broadcast what `find_out` returns on the first member, as JSON, under a key of its own.

        A UserError that it raises is raised in all of them.
        """
        return find_out()

    def gather(self, key: str, value: Any) -> list[Any]:
        """Gather the values of all members, in their order, on the first; [] on the others."""
        return [value]

    def reports_failure(self) -> bool:
        """Whether this process prints why the run failed: the first of several ranks to ask."""
        return True


@dataclass(frozen=True)
class RunContext:
    """One job: created when its configuration has been validated, and passed down from there."""

    run_dir: Path  # the run directory
    # The processes of this run that were started separately.
    members: Members = field(default_factory=Members)
    attempt: Attempt = field(default_factory=Attempt)  # what its ranks resume from after a restart
    # The lock of the run directory, in the process that created it.
    held: "LockedDirectory | None" = None
    # Where a rank leaves its PID while it handles signals by a flag; None where no agent of ours
    # forwards signals.
    listening: Path | None = None

    def for_ranks(self) -> "RunContext":
        """Drop what belongs to this process and cannot be sent to ranks."""
        return replace(self, members=Members(), held=None)
