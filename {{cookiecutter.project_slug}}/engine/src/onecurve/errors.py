"""The one exception that is shown as a sentence instead of a traceback."""

import errno
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn


class UserError(Exception):
    """Something that the person at the keyboard can put right.

    Raise it with one line that names the config key, its value, what is allowed and a working
    alternative. The command prints that line and ends with status 2.
    """


FULL_DISK = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}

REFUSED = 2
"""Exit status after a UserError; Hydra's own refusals end with 1."""


def say(line: str) -> None:
    """Tell the person at the keyboard, who may have sent stderr to a disk that is full.

    What follows, such as the end of the command, must not depend on whether anybody hears it.
    """
    # ValueError: it was closed.
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def stop(error: UserError) -> NoReturn:
    """Show the line and end the program."""
    say(f"error: {error}")
    sys.exit(REFUSED)


def some_of(names: Sequence[str], shown: int = 3) -> str:
    """The first of many names, and how many more there are, for a line that stays readable."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def in_short(error: BaseException, at_most: int = 200) -> str:
    """A library's words about what went wrong, as a part of a line."""
    return " ".join(str(error).split())[:at_most]


def user_error_behind(error: BaseException | None) -> UserError | None:
    """The UserError that a library wrapped into an exception of its own, if there is one.

    A full disk is one, too. What Ctrl-C has cut off is none, whatever it was taken for.
    """
    if interrupted(error):
        return None
    while error is not None and not isinstance(error, UserError):
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            where = f"{error.filename}: " if error.filename else ""
            return UserError(f"{where}the disk is full; make room, then go on with resume=last")
        error = error.__cause__ or error.__context__
    return error


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what an error began with.

    A library that it cuts off may fail at cleaning up: OmegaConf, halfway into a configuration,
    with an AttributeError.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
