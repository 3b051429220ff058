"""The command that started a run, and commands and paths that are printed for the user to copy.

An override is quoted twice: for Hydra's grammar, and then for the shell.
"""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException


class Invocation(NamedTuple):
    """A script, and the directory in which it was called."""

    directory: Path
    script: str  # as it was typed, such as "train.py" or "../train.py"

    def short(self, path: str | Path) -> str:
        """A path as it is printed: relative to the directory if it is in there."""
        path = Path(os.path.abspath(path))
        is_inside = path.is_relative_to(self.directory)
        return str(path.relative_to(self.directory) if is_inside else path)

    def command(self, script: str, *overrides: str) -> str:
        """A command line for a shell: a script beside this one, with overrides."""
        path = self.short((self.directory / self.script).with_name(script))
        return shlex.join(["python", path, *overrides])


def invocation() -> Invocation:
    """That of this process; Hydra may have changed the directory since."""
    is_run = HydraConfig.initialized()
    return Invocation(Path(HydraConfig.get().runtime.cwd if is_run else os.getcwd()), sys.argv[0])


def invocation_of(run_dir: Path) -> Invocation:
    """That of a run, from its record."""
    record = run_dir / "environment.json"
    if not record.is_file():
        return invocation()
    environment = json.loads(record.read_text())
    return Invocation(Path(environment["directory"]), environment["command"][1])


def override(key: str, value: str | Path) -> str:
    """An override with a text, in quotes if Hydra would read something else without them."""
    text = str(value)
    is_plain = "${" not in text and text_of(f"{key}={text}") == text
    return f"{key}={text if is_plain else quoted(text)}"


def quoted(value: str | Path) -> str:
    """A text, or a path, quoted for Hydra's grammar and OmegaConf's interpolation."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", str(value))
    # Double quotes where possible: the shell's are single.
    return QuotedString(text, Quote.single if '"' in text else Quote.double).with_quotes()


def text_of(word: str) -> str | None:
    """The text that Hydra reads in an override; None if it is no text, or no override."""
    found = parsed(word)
    value = None if found is None or found.is_sweep_override() else found.value()
    if not isinstance(value, str):
        return None
    return re.sub(r"(\\*)\\\$\{", lambda match: match[1][1::2] + "${", value)


def parsed(word: str) -> Override | None:
    """An override, parsed by Hydra; None if it cannot be parsed."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None
