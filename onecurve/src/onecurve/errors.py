"""The one exception that is shown as a sentence instead of a traceback."""

import errno
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NoReturn


class UserError(Exception):
    """Something that the person at the keyboard can put right.

    Raise it with one line that names the config key, its value, what is allowed and a working
    alternative. The command prints that line and ends with status 2.
    """

    def __str__(self) -> str:
        """On one line: a key or a value may have been typed with a line break in it."""
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """With its line breaks as they are written in a program."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


FULL_DISK = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}

OTHER_PACKAGE = re.compile("must be a `LightningModule`|strategy=<onecurve")
"""What either of Lightning's two packages says of what belongs to the other."""

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


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, each once: two may name each other."""
    passed: set[int] = set()
    while error is not None and id(error) not in passed:
        passed.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what an error began with.

    A library that it cuts off may fail at cleaning up: OmegaConf, halfway into a configuration,
    with an AttributeError.
    """
    return any(isinstance(each, KeyboardInterrupt) for each in chain(error))


def of_syntax(error: SyntaxError) -> UserError:
    """What Python says of a file that it cannot read, and where."""
    return UserError(
        f"{error.filename}, line {error.lineno}: {error.msg} ({type(error).__name__}); correct it"
    )


def user_error_behind(error: BaseException | None) -> UserError | None:
    """The UserError that a library wrapped into an exception of its own, if there is one.

    A full disk is one, too, and so are a file that Python cannot read, and what Lightning says of
    its other package. What Ctrl-C has cut off is none, whatever it was taken for.
    """
    if interrupted(error):
        return None
    for each in chain(error):
        if isinstance(each, UserError):
            return each
        if isinstance(each, SyntaxError) and each.filename:
            return of_syntax(each)
        if isinstance(each, OSError) and each.errno in FULL_DISK:
            where = f"{each.filename}: " if each.filename else ""
            return UserError(f"{where}the disk is full; make room, then go on with resume=last")
        if "pytorch_lightning" in sys.modules and OTHER_PACKAGE.search(str(each)):
            return UserError(
                "onecurve is for the package lightning, and pytorch_lightning is another, whose "
                "classes are others; write import lightning.pytorch as pl instead of import "
                f"pytorch_lightning as pl ({in_short(each, 90)})"
            )
    return None
