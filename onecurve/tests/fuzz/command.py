"""One command in a process of its own, which need not import anything first."""

import resource
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from processes import Command, end

SECONDS_AT_MOST = 60
# A number that is too large must not take this machine's memory: it gets no more than that.
BYTES_AT_MOST = 16 << 30


@dataclass
class Done:
    """What came of a command."""

    status: int | None
    """Its exit status; None if it had to be ended."""
    out: str
    err: str
    left: list[str]
    """What it left in its folder, which was empty before."""


def run(script: Path, arguments: list[str], folder: Path) -> Done:
    """`python SCRIPT ARGUMENTS` in an empty folder."""
    assert not list(folder.iterdir())
    command = Command(folder, str(script), *arguments)
    resource.prlimit(command.pid, resource.RLIMIT_AS, (BYTES_AT_MOST, BYTES_AT_MOST))
    with suppress(subprocess.TimeoutExpired):
        command.wait(SECONDS_AT_MOST)
    status = command.returncode
    end(command)
    out, err = (
        file.read_text(encoding="utf-8", errors="replace")
        for file in (command.stdout, command.stderr)
    )
    return Done(status, out, err, sorted(str(path) for path in folder.rglob("*")))


def empty(folder: Path) -> None:
    """Remove what a command has left."""
    shutil.rmtree(folder)
    folder.mkdir()
