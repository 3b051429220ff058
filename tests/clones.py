"""Clones of this checkout, with a commit of what is not committed here."""

import shutil
import subprocess
from pathlib import Path

from baking import TEMPLATE, run_in

NOBODY = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")


def git(folder: Path, *arguments: str) -> str:
    """What git prints; it must succeed."""
    done = run_in(folder, "git", *NOBODY, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def clone(folder: Path) -> Path:
    """A clone without an origin, as somebody has who works on the template."""
    subprocess.run(["git", "clone", "--quiet", str(TEMPLATE), str(folder)], check=True)
    git(folder, "remote", "remove", "origin")
    git(folder, "rm", "-r", "--quiet", ".")
    listed = git(TEMPLATE, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (TEMPLATE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TEMPLATE / name, folder / name)
    commit(folder, "newest")
    return folder


def commit(folder: Path, message: str) -> None:
    """Everything that is there."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
