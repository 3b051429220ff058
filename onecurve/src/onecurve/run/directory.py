"""A run directory has one process at a time that works there, and says which."""

import os
import platform
import re
from pathlib import Path
from typing import IO

from .. import lock
from ..errors import UserError

LOCK = ".lock"


class Held:
    """A run directory in which no other process works until `let_go`, or the end of this process.

    Attributes:
        was_empty: Whether there was nothing in it before.
    """

    def __init__(self, file: IO[str], was_empty: bool) -> None:
        self.file = file
        self.was_empty = was_empty

    def let_go(self) -> None:
        """Let others work there."""
        self.file.close()

    def give_back(self) -> None:
        """Let go before the run has begun, and remove the directory if it was made for it."""
        file = Path(self.file.name)
        self.let_go()
        if not self.was_empty:
            return
        file.unlink(missing_ok=True)
        for folder in list(file.parents)[:3]:
            try:
                folder.rmdir()
            except OSError:
                break


def take(run_dir: Path) -> IO[str] | None:
    """Hold a run directory until the returned file is closed, or this process ends.

    Returns:
        None if another process holds it.
    """
    file = lock.take(run_dir / LOCK)
    if file is not None:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
    return file


def hold(run_dir: Path, typed: str) -> Held:
    """Make a run directory, and keep other processes from working in it.

    Args:
        run_dir: The directory.
        typed: What the refusal begins with, such as "resume=last".

    Raises:
        UserError: If another process is at work there, or if it cannot be made.
    """
    refuse_remote(run_dir, typed)
    try:
        was_empty = not run_dir.exists() or not any(run_dir.iterdir())
        file = take(run_dir)
    except OSError as error:
        raise UserError(
            f"{typed}: cannot be made: {error.strerror}; name a folder that you may "
            "write to, such as paths.runs=runs"
        ) from None
    while file is None:
        refuse_taken(run_dir, typed)
        file = take(run_dir)
    return Held(file, was_empty)


def refuse_remote(run_dir: Path, typed: str) -> None:
    """Refuse an address of the network: a folder of that name would be made here.

    Raises:
        UserError: That names a directory that works.
    """
    if re.search(r"(^|/)\w\w+:/", str(run_dir)):
        raise UserError(
            f"{typed}: a run directory is on a local disk, or on one that is mounted; use "
            f"{typed.partition('=')[0]}=runs/NAME, and copy it when the run has ended"
        )


def refuse_taken(run_dir: Path, typed: str) -> None:
    """Refuse a run directory in which another process is at work.

    Raises:
        UserError: That names the process.
    """
    if not lock.is_taken(run_dir / LOCK):
        return
    who = (run_dir / LOCK).read_text().strip() or "another process"
    raise UserError(
        f"{typed}: {who} is at work in {run_dir}; wait for its end, or stop it, then type the "
        "same again"
    )
