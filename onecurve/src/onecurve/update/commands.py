"""Other programs: git, and cruft, which uv fetches if it is not installed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError


def git(folder: Path, *arguments: str, within: bytes | None = None) -> str:
    """What git prints.

    Raises:
        UserError: With git's last line, if it fails or is not there.
    """
    return in_bytes(folder, *arguments, within=within).decode(errors="replace")


def in_bytes(folder: Path, *arguments: str, within: bytes | None = None) -> bytes:
    """What git prints, as it is; `within` is what it reads."""
    done = answer(["git", "-C", str(folder), *arguments], within)
    if done.returncode:
        raise UserError(f"git {arguments[0]}: {last_line(done)}")
    return done.stdout


def answer(
    command: Sequence[str], within: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; its status is for the caller to look at."""
    quiet = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # a password is asked for by nobody
    try:
        return subprocess.run(
            command, input=within, env={**os.environ, **quiet}, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed; make update needs it") from None


def last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a program said in the end."""
    said = (done.stderr.decode(errors="replace") or done.stdout.decode(errors="replace")).split(
        "\n"
    )
    return next((line.strip() for line in reversed(said) if line.strip()), "it failed")


def cruft(*arguments: str) -> None:
    """Run cruft.

    Raises:
        UserError: If it cannot be had, or fails.
    """
    done = answer([*_cruft(), *arguments])
    if done.returncode:
        raise UserError(f"cruft {arguments[0]}: {last_line(done)}")


def _cruft() -> list[str]:
    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ.get("PATH", "")])
    if found := shutil.which("cruft", path=path):
        return [found]
    if not (uv := shutil.which("uv", path=path)):
        raise UserError("make update needs uv, which make setup installs")
    command = [uv, "tool", "run", "--quiet", "cruft"]
    tried = answer([*command, "--help"])
    if tried.returncode:
        raise UserError(f"cruft, which make update needs, cannot be installed: {last_line(tried)}")
    return command
