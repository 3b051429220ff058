"""A run as its processes see it: what is passed down to its ranks, and how it ends.

It ends with metrics, by a signal, by a callback, or by the failure of a rank.
"""

import json
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import UserError, interrupted
from .addresses import answered, wait

if TYPE_CHECKING:
    from ..app.run.record import LockedDirectory

SECONDS_TO_READ = 30


class Attempt(NamedTuple):
    """The attempt of a run that ranks belong to; after a failure all of them are restarted."""

    number: int = 0  # the number of restarts before it
    checkpoint: str | None = None
    """What the ranks resume from; None for the configuration's `resume`."""


@dataclass(eq=False)
class Members:
    """The processes of a run that were started separately: this one alone, or ranks with a store.

    The store holds values as JSON, each under a key of its own.
    """

    index: int = 0  # the number of this process; 0 creates the run directory and writes the record
    count: int = 1
    store: Any = None  # a TCPStore, which rank 0 serves
    limit: float = 0  # seconds to wait for the others
    late: str = ""  # the error line if they have not come by then

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def broadcast(self, key: str, find_out: Callable[[], Any]) -> Any:
        """Broadcast what `find_out` returns on the first member.

        A UserError that it raises is raised in all of them.
        """
        if self.store is None:
            return find_out()
        if self.is_first:
            try:
                self._set(key, [find_out(), None])
            except UserError as error:
                self._set(key, [None, str(error)])
        answer, refusal = self._get([key], self.limit)[0]
        if refusal is None:
            return answer
        # The first serves the store, and ends once the others have read why.
        with suppress(UserError):
            self.gather(f"{key} was read", True, SECONDS_TO_READ)
        raise UserError(refusal)

    def gather(self, key: str, value: Any, seconds: float | None = None) -> list[Any]:
        """Gather the values of all members, in their order, on the first; [] on the others."""
        if self.store is None:
            return [value]
        self._set(f"{key}/{self.index}", value)
        keys = [f"{key}/{index}" for index in range(self.count)]
        return self._get(keys, seconds or self.limit) if self.is_first else []

    def reports_failure(self) -> bool:
        """Whether this process prints why the run failed: the first of several ranks to ask."""
        try:
            return self.store is None or int(self.store.add("failures", 1)) == 1
        except RuntimeError:
            return True

    def _set(self, key: str, value: Any) -> None:
        with answered(self.store.host, self.store.port):
            self.store.set(key, json.dumps(value))

    def _get(self, keys: list[str], seconds: float) -> list[Any]:
        with answered(self.store.host, self.store.port):
            wait(lambda: bool(self.store.check(keys)), time.monotonic() + seconds, self.late)
            return [json.loads(self.store.get(key)) for key in keys]


@dataclass(frozen=True)
class RunContext:
    """One job: created when its configuration has been validated, and passed down from there."""

    run_dir: Path
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


@dataclass(eq=False)
class Stopped(Exception):
    """Training was stopped by a signal, after saving a checkpoint at some optimizer step."""

    number: int
    step: int


@dataclass(eq=False)
class EndedEarly(Exception):
    """A callback ended training on all ranks, for good, with a status for metrics.json."""

    status: str


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
    """The result of a rank.

    Raises:
        RankFailed: If it says that a comparison found a difference, or that a signal stopped
            training, with the exit status 128 + the first that was `received`.
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
