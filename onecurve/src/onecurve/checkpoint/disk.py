"""What it takes for files to last: names that reach the disk, and the reason why they did not."""

import os
from pathlib import Path
from tempfile import TemporaryFile

from ..errors import chain


def sync_folder(path: Path) -> None:
    """Bring a folder's list of names to the disk, so that a rename in it lasts."""
    if os.name != "posix":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def set_aside(path: Path) -> Path:
    """Rename a checkpoint of the other format; it can be read until the new one is whole."""
    return path.rename(path.with_name(f"{path.stem}.earlier{path.suffix}"))


def cannot_be_made(folder: Path) -> str | None:
    """Why a folder cannot be made, or not be written to; None if it can. Nothing of it is made."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryFile(dir=there):
            return None
    except OSError as error:
        return error.strerror


def disk_error(error: BaseException | None) -> OSError | None:
    """The reason that torch hides behind an error of its own."""
    return next((each for each in chain(error) if isinstance(each, OSError)), None)
