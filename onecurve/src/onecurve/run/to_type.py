"""Commands and paths that are printed to be typed again, where the command of a run was typed.

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


class Typed(NamedTuple):
    """What was typed, and where."""

    directory: Path
    script: str
    """As it was typed, such as "train.py" or "../train.py"."""

    def short(self, path: str | Path) -> str:
        """A path as it is shown: relative to the directory where it lies in it."""
        path = Path(os.path.abspath(path))
        is_inside = path.is_relative_to(self.directory)
        return str(path.relative_to(self.directory) if is_inside else path)

    def command(self, script: str, *overrides: str) -> str:
        """A line for a shell: another script, or the same, with these overrides."""
        path = self.short((self.directory / self.script).with_name(script))
        return shlex.join(["python", path, *overrides])


def typed_here() -> Typed:
    """The command of this process; Hydra may have gone to another directory since."""
    is_run = HydraConfig.initialized()
    return Typed(Path(HydraConfig.get().runtime.cwd if is_run else os.getcwd()), sys.argv[0])


def typed_for(run_dir: Path) -> Typed:
    """The command that started a run; a rank knows it from what was recorded."""
    record = run_dir / "environment.json"
    if not record.is_file():
        return typed_here()
    environment = json.loads(record.read_text())
    return Typed(Path(environment["directory"]), environment["command"][1])


def override(key: str, value: str | Path) -> str:
    """An override with a text, in quotes if Hydra reads something else without them."""
    text = str(value)
    is_read = "${" not in text and read(f"{key}={text}") == text
    return f"{key}={text if is_read else quoted(text)}"


def quoted(value: str | Path) -> str:
    """A text, or a path, as Hydra's grammar and OmegaConf's interpolation want it."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", str(value))
    # The other quotes are the shell's, as a rule.
    return QuotedString(text, Quote.single if '"' in text else Quote.double).with_quotes()


def read(word: str) -> str | None:
    """The text that Hydra reads in an override; None for another kind of value, or none at all."""
    found = parsed(word)
    value = None if found is None or found.is_sweep_override() else found.value()
    if not isinstance(value, str):
        return None
    return re.sub(r"(\\*)\\\$\{", lambda match: match[1][1::2] + "${", value)


def parsed(word: str) -> Override | None:
    """What Hydra makes of an override; None if it cannot read it."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None
