"""What a command looks at before it composes a configuration: streams, .env, and the Python."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from ...errors import UserError

ENV_FILE = ".env"
# As a shell and Docker read it; nothing in it is replaced or run.
ENV_LINE = re.compile(
    r"""(?:export\s+)? ([A-Za-z_]\w*) \s*=\s*
        (?: '([^']*)' | "([^"]*)" | ([^\s'"\#].*?|) ) (?:\s+\#.*)?""",
    re.VERBOSE | re.ASCII,
)


def open_closed_streams() -> None:
    """Lead standard streams that were closed (`2>&-`) nowhere.

    The next file would else take their place, and be written into.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115


def read_env_file(project: Path) -> None:
    """Set the variables of one machine, such as keys; one that is set already stays as it is.

    A line that cannot be read is named by its number, for it may hold a secret.
    """
    file = project / ENV_FILE
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{file}: cannot be read: {reason}; correct that, or remove it") from None
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        match = ENV_LINE.fullmatch(line)
        if match is None:
            raise UserError(
                f"{file}, line {number}: must be NAME=VALUE, such as WANDB_API_KEY=... or "
                "WANDB_API_KEY='...', and a quote that opens a value closes it"
            )
        name, *values = match.groups()
        os.environ.setdefault(name, next(value for value in values if value is not None))


def reject_another_python(project: Path) -> None:
    """Without the project's own package every other line would be about its classes."""
    for file in project.glob("src/*/__init__.py"):
        name = file.parent.name
        if find_spec(name) is None:
            raise UserError(
                f"{name} (the package in src/) is not installed in this Python; type "
                "`make setup`, then `source .venv/bin/activate` (or `uv run`)"
            )
