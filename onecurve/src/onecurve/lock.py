"""Who works on what: a lock that its holder's death releases, however it dies."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

# Of a file that another process has locked; others are of a file system without locks.
TAKEN = (errno.EACCES, errno.EAGAIN)


def take(path: Path) -> IO[str] | None:
    """Hold a file's lock until the returned file is closed, or this process ends.

    It is not passed on to processes that this one forks. Where the file system has no locks
    everybody gets it.

    Returns:
        None if another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    try:
        if fcntl:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            file.close()
            return None
    return file


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold a file's lock, once it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if fcntl:
            # A file system may have no locks.
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def is_taken(path: Path) -> bool:
    """Whether another process holds it. Not asked by the holder, which would let go of it."""
    if not path.exists():
        return False
    try:
        file = take(path)
    except OSError:
        return False  # of somebody else, or on a disk that is read alone
    if file is None:
        return True
    file.close()
    return False
