"""How a run ends: its metrics, the signal that stopped it, the callback or rank that ended it."""

import re
import signal
from collections.abc import Sequence
from typing import Any, TypeVar

from ..errors import UserError, interrupted

Metrics = dict[str, float]
Result = TypeVar("Result")

# In what `work` returns: the signal that stopped training.
STOPPED = "stopped_by_signal"
# In what `work` returns: the line that the command ends with, and the status 1, all being done.
DIFFERS = "differs"


class RankFailed(Exception):
    """A rank ended with an error, or was ended.

    Attributes:
        status: The exit status that the command should end with.
        lost_contact: Whether the rank only noticed that another was gone.
        cause: The error itself, of a message with a traceback; else the first line.
    """

    def __init__(self, message: str, status: int = 1, lost_contact: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.lost_contact = lost_contact
        errors = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", message, re.MULTILINE)
        self.cause = errors[-1] if errors else message.strip().partition("\n")[0]


class Stopped(Exception):
    """Training was stopped by a signal, and everything is saved.

    Attributes:
        number: The signal.
        step: Steps that were made.
    """

    def __init__(self, number: int, step: int) -> None:
        super().__init__(number, step)
        self.number = number
        self.step = step


class EndedEarly(Exception):
    """A callback ended training on all ranks, for good.

    Attributes:
        status: What metrics.json is to say instead of "finished".
    """

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


def is_stopped(result: Any) -> bool:
    """Whether what a rank returned says that a signal stopped training."""
    return isinstance(result, dict) and STOPPED in result


def unless_stopped(result: Result, received: Sequence[int] = ()) -> Result:
    """What a rank returned that went to its end.

    Args:
        result: What `work` returned.
        received: Signals that this process passed on to the ranks.

    Raises:
        RankFailed: If training was stopped by a signal, with the exit status 128 + the signal; or
            if `work` has done all of it and found a difference.
    """
    if isinstance(result, dict) and DIFFERS in result:
        raise RankFailed(str(result[DIFFERS]))
    if not is_stopped(result):
        return result
    assert isinstance(result, dict)
    number = int(received[0] if received else result[STOPPED])
    raise RankFailed(
        f"stopped by {signal.Signals(number).name} after step {result['global_step']:g}, which is "
        "saved; go on with resume=last",
        128 + number,
    )


def was_stopped(error: BaseException) -> bool:
    """Whether somebody ended the run: by a signal, or by Ctrl-C."""
    by_signal = isinstance(error, RankFailed) and error.status > 128
    return by_signal or interrupted(error)


def in_a_line(error: BaseException) -> str:
    """What went wrong, or who stopped the run, without the traceback."""
    if isinstance(error, RankFailed):
        return error.cause
    if interrupted(error):
        return "stopped by Ctrl-C"
    text = str(error).strip().split("\n")[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
