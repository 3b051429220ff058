"""A run directory has one process at a time that works there, and says which."""

import os
import platform
import re
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UserError

LOCK = ".lock"
# Names the process, in a file of its own: Windows lets nobody write to a locked one.
HOLDER = ".holder"


class Held:
    """A run directory in which no other process works until `let_go`, or the end of this process.

    Attributes:
        was_empty: Whether there was nothing in it before.
    """

    def __init__(self, run_dir: Path, lock: FileLock, was_empty: bool) -> None:
        self.run_dir = run_dir
        self.lock = lock
        self.was_empty = was_empty

    def let_go(self) -> None:
        """Let others work there."""
        self.lock.release()

    def give_back(self) -> None:
        """Let go before the run has begun, and remove the directory if it was made for it."""
        self.let_go()
        if not self.was_empty:
            return
        for name in (LOCK, HOLDER):
            (self.run_dir / name).unlink(missing_ok=True)
        for folder in (self.run_dir, *list(self.run_dir.parents)[:2]):
            try:
                folder.rmdir()
            except OSError:
                break


def try_lock(path: Path) -> FileLock | None:
    """Lock a file until the result is released, or this process ends; None if it is locked.

    Processes that this one forks, such as workers of a loader, do not hold the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def take(run_dir: Path) -> FileLock | None:
    """Lock a run directory, and name this process in it; None if another process is there."""
    lock = try_lock(run_dir / LOCK)
    if lock is not None:
        (run_dir / HOLDER).write_text(f"process {os.getpid()} on {platform.node()}\n")
    return lock


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
        lock = take(run_dir)
    except OSError as error:
        raise UserError(
            f"{typed}: {run_dir} cannot be made: {error.strerror}; give a directory that can, "
            "such as hydra.run.dir=runs/NAME"
        ) from None
    while lock is None:
        refuse_taken(run_dir, typed)
        lock = take(run_dir)
    return Held(run_dir, lock, was_empty)


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
    if not _is_locked(run_dir / LOCK):
        return
    holder = run_dir / HOLDER
    who = holder.read_text().strip() if holder.exists() else "another process"
    raise UserError(
        f"{typed}: {who} is at work in {run_dir}; wait for its end, or stop it, then type the "
        "same again"
    )


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        lock = try_lock(path)
    except OSError:
        return False  # somebody else's, or on a disk that can only be read
    if lock is None:
        return True
    lock.release()
    return False
