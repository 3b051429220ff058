"""Who works on what: a lock that its holder's death releases, however it dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def take(path: Path) -> IO[str] | None:
    """Hold a file's lock until the returned file is closed, or this process ends.

    It is not passed on to processes that this one forks.

    Returns:
        None if another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold a file's lock, once it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def is_taken(path: Path) -> bool:
    """Whether another process holds it."""
    if not path.exists():
        return False
    file = take(path)
    if file is None:
        return True
    file.close()
    return False
