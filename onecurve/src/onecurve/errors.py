"""Errors that users see as one line instead of a traceback, and the parts of such lines."""

import errno
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import NoReturn


class UserError(Exception):
    """An error that the user can correct.

    Raise it with one line that names the config key, its value, what is allowed and a working
    alternative. The command prints that line and ends with status 2.
    """

    def __str__(self) -> str:
        """On one line, also where a key or a value contains a line break."""
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """Escape line breaks."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


FULL_DISK = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}

OTHER_PACKAGE = re.compile("must be a `LightningModule`|strategy=<onecurve")
"""Messages of either of Lightning's two packages about an object of the other."""

REFUSED = 2
"""Exit status after a UserError; after an error of Hydra's own it is 1."""


def say(line: str) -> None:
    """Print a line to stderr; the run goes on if that is closed, or a file on a full disk."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def stop(error: UserError) -> NoReturn:
    """Print the error and end the program with status 2."""
    say(f"error: {error}")
    sys.exit(REFUSED)


def some_of(names: Sequence[str], shown: int = 3) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def missing_packages(asked: str, packages: Sequence[str], extra: str, instead: str) -> str | None:
    """The error line for an option whose packages are not installed; None if they are.

    Args:
        asked: The option, such as ``format=onnx``.
        packages: Names of modules; none is imported here.
        extra: The extra of this distribution that installs them.
        instead: An option that works without them.
    """
    absent = [name for name in packages if find_spec(name) is None]
    if not absent:
        return None
    return (
        f"{asked}: needs {', '.join(absent)}; type `uv pip install -e '.[{extra}]'`, or use "
        f"{instead}"
    )


def in_short(error: BaseException, at_most: int = 200) -> str:
    """The message of an error on one line, truncated."""
    return " ".join(str(error).split())[:at_most]


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes and contexts, each once: they may form a cycle."""
    passed: set[int] = set()
    while error is not None and id(error) not in passed:
        passed.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error.

    A library that it interrupts may fail otherwise: OmegaConf with an AttributeError.
    """
    return any(isinstance(each, KeyboardInterrupt) for each in chain(error))


def of_syntax(error: SyntaxError) -> UserError:
    """The line for a Python file that cannot be parsed."""
    return UserError(
        f"{error.filename}, line {error.lineno}: {error.msg} ({type(error).__name__}); correct it"
    )


def user_error_behind(error: BaseException | None) -> UserError | None:
    """The UserError behind an exception, which a library may have wrapped; None if there is none.

    A full disk, a syntax error in a file, and a class of the package pytorch_lightning become one.
    After Ctrl-C there is none.
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
            return UserError(f"{where}the disk is full; make room, then continue with resume=last")
        if "pytorch_lightning" in sys.modules and OTHER_PACKAGE.search(str(each)):
            return UserError(
                "onecurve is for the package lightning, and pytorch_lightning is another, whose "
                "classes are others; write import lightning.pytorch as pl instead of import "
                f"pytorch_lightning as pl ({in_short(each, 90)})"
            )
    return None
