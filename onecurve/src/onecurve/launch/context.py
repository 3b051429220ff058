"""A run as its processes see it: what is passed down to its ranks, and how it ends.

It ends with metrics, by a signal, by a callback, or by the failure of a rank.
"""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import UserError, interrupted

if TYPE_CHECKING:
    from ..app.run.record import LockedDirectory


class Attempt(NamedTuple):
    """The attempt of a run that ranks belong to; after a failure all of them are restarted.

    Rank 0 decides for all: ranks that looked by themselves might find different checkpoints.
    """

    number: int = 0  # the number of restarts before it
    checkpoint: str | None = None
    """What the ranks resume from; None for the configuration's `resume`."""


class Members:
    """The processes of a run that were started separately: this one alone.

    `onecurve.launch.meeting.Meeting` is several: the ranks of torchrun or srun.
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


STOPPING = "stopping"
"""A file in `RunContext.listening` once ranks have agreed to stop at a signal."""

Metrics = dict[str, float]
Result = TypeVar("Result")

# Keys of what a rank's work returns: the signal that stopped training, the line with which the
# command ends, with status 1, and the number that a script returned, which a sweep compares.
STOPPED = "stopped_by_signal"
DIFFERS = "differs"
STATUS = "exit_status"  # beside that line, another than 1
RETURNED = "returned"


class RankFailed(Exception):
    """A rank failed, or was killed.

    Attributes:
        status: The exit status of the command.
        cause: The last error in the message's traceback; without one, the first line.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status
        errors = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", message, re.MULTILINE)
        self.cause = errors[-1] if errors else message.strip().partition("\n")[0]


class Stopped(Exception):
    """Training was stopped by a signal, after saving a checkpoint at some optimizer step."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(number, step)
        self.number = number
        self.step = step


class EndedEarly(Exception):
    """A callback ended training on all ranks, for good, with a status for metrics.json."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


def diverged(metrics: Metrics) -> str | None:
    """The name of a final loss that is not finite; None if there is none.

    Other metrics may be undefined for the data that they saw.
    """
    return next(
        (name for name in metrics if name.endswith("loss") and not isfinite(metrics[name])), None
    )


def is_stopped(result: Any) -> bool:
    """Whether the result of a rank says that a signal stopped training."""
    return isinstance(result, dict) and STOPPED in result


def unless_stopped(result: Result, received: Sequence[int] = ()) -> Result:
    """The result of a rank, unless it says that the run did not succeed.

    `received` are the signals that this process forwarded to the ranks.

    Raises:
        RankFailed: If training was stopped by a signal, with the exit status 128 + the signal; or
            if a comparison found a difference.
    """
    if isinstance(result, dict) and DIFFERS in result:
        raise RankFailed(str(result[DIFFERS]), int(result.get(STATUS, 1)))
    if not is_stopped(result):
        return result
    assert isinstance(result, dict)
    number = int(received[0] if received else result[STOPPED])
    raise RankFailed(
        f"stopped by {signal.Signals(number).name} after step {result['global_step']:g}, which is "
        "saved; continue with resume=last",
        128 + number,
    )


def was_stopped(error: BaseException) -> bool:
    """Whether the user ended the run, by a signal or Ctrl-C."""
    by_signal = isinstance(error, RankFailed) and error.status > 128
    return by_signal or interrupted(error)


def describe_failure(error: BaseException) -> str:
    """Why a run ended, without the traceback."""
    if isinstance(error, RankFailed):
        return error.cause
    if interrupted(error):
        return "stopped by Ctrl-C"
    text = str(error).strip().split("\n")[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
