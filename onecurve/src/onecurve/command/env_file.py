"""`.env` in the project: variables of one machine, such as keys, which no command is typed with.

Lines are NAME=VALUE, as a shell and Docker read them; ``export`` before it, quotes around the
value, and comments are allowed. Nothing in it is replaced or run.
"""

import os
import re
from pathlib import Path

from ..errors import UserError

FILE = ".env"
LINE = re.compile(
    r"""(?:export\s+)? ([A-Za-z_]\w*) \s*=\s*
        (?: '([^']*)' | "([^"]*)" | ([^\s'"\#].*?|) ) (?:\s+\#.*)?""",
    re.VERBOSE | re.ASCII,
)


def read(project: Path) -> None:
    """Set what `.env` in this folder says; a variable that is set already stays as it is.

    Raises:
        UserError: If a line cannot be read; it is named by its number, for it may hold a secret.
    """
    try:
        lines = (project / FILE).read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{project / FILE}: cannot be read: {type(error).__name__}") from None
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        found = LINE.fullmatch(line)
        if found is None:
            raise UserError(
                f"{project / FILE}, line {number}: must be NAME=VALUE, such as WANDB_API_KEY=... "
                "or WANDB_API_KEY='...', and a quote that opens a value closes it"
            )
        name, *values = found.groups()
        os.environ.setdefault(name, next(value for value in values if value is not None))
