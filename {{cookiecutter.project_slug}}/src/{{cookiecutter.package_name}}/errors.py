"""The one exception that is shown as a sentence instead of a traceback."""

import sys
from typing import NoReturn


class UserError(Exception):
    """Something that the person at the keyboard can put right.

    Raise it with one line that names the config key, its value, what is allowed and a working
    alternative. The command prints that line and ends with status 2.
    """


REFUSED = 2
"""Exit status after a UserError; Hydra's own refusals end with 1."""


def stop(error: UserError) -> NoReturn:
    """Show the line and end the program."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(REFUSED)


def user_error_behind(error: BaseException | None) -> UserError | None:
    """The UserError that a library wrapped into an exception of its own, if there is one."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error
