"""How a run ends: with metrics, by a signal, by a callback, or by the failure of a rank."""

import re
import signal
from collections.abc import Sequence
from math import isfinite
from typing import Any, TypeVar

from ..errors import UserError, interrupted

Metrics = dict[str, float]
Result = TypeVar("Result")

# Keys of what `work` returns: the signal that stopped training, and the line with which the command
# ends, with status 1.
STOPPED = "stopped_by_signal"
DIFFERS = "differs"

# The signals that stop training. Of several the last in this order counts.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT")
    if hasattr(signal, name)
)


class RankFailed(Exception):
    """A rank failed, or was killed.

    Attributes:
        status: The exit status of the command.
        lost_contact: Whether the rank only noticed that another one was gone.
        cause: The last error in the message's traceback; without one, the first line.
    """

    def __init__(self, message: str, status: int = 1, lost_contact: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.lost_contact = lost_contact
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
        raise RankFailed(str(result[DIFFERS]))
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
