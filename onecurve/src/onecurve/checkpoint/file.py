"""One checkpoint file: never half written, and known to be whole before it is read.

The file is what `torch.save` writes: a zip with a CRC-32 for each record, which `torch.load` does
not look at. Whether a file is complete, and which one of a run is the newest complete one, is found
without importing torch.
"""

import os
import re
import shutil
import zipfile
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from ..errors import chain

INDEX = "index.json"
"""What makes a folder a sharded checkpoint."""

# A file that is being written, with the number of the process that writes it.
UNFINISHED = re.compile(r"\..+\.ckpt\.(\d+)")
CUT_SHORT = "it is cut short, or not written by a training run"
# Flags, attributes, disk and compression of every record that torch writes.
AS_TORCH_WRITES = (0x808, 0, 0, zipfile.ZIP_STORED)


def is_sharded(path: str | Path) -> bool:
    """Whether a path is a sharded checkpoint, complete or not."""
    return Path(path, INDEX).is_file()


def write_checkpoint(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Write a file whole or not at all: beside its place, to the disk, then by renaming.

    A reader, and a machine that loses power, sees the old file or the new one.

    Raises:
        OSError: If it cannot be written, on a full disk for example; the old file is untouched.
    """
    import torch

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        earlier = set_aside(path) if path.is_dir() else None
        unfinished.replace(path)
        if earlier:
            shutil.rmtree(earlier)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if cause := disk_error(error):
            raise cause from None
        raise
    _remove_unfinished(path.parent)
    sync_folder(path.parent)


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed meanwhile have left beside its place."""
    for file in folder.iterdir():
        if (found := UNFINISHED.fullmatch(file.name)) and not _lives(int(found[1])):
            file.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def damage(path: str | Path) -> str | None:
    """What is wrong with a file, or a sharded one, in a few words; None if it is complete.

    A process looks through a file once, while it stays as it is.
    """
    path = Path(path)
    if path.is_dir():
        try:
            from .sharded.folder import damage_of_folder
        except ModuleNotFoundError:
            return "it is sharded, and the folder onecurve/checkpoint/sharded is not there"
        return damage_of_folder(path)
    try:
        now = path.stat()
        if not path.is_file():
            return "it is no file, but a device or a pipe"
        return _damage_of_file(path, now.st_size, now.st_mtime_ns)
    except OSError as error:
        return str(error.strerror)


@lru_cache
def _damage_of_file(path: Path, *version: int) -> str | None:
    """Every record is as it was written, and nothing of their list has another meaning.

    Some sixty bytes at the end of a file, which count records and disks, are nobody's to check:
    torch refuses a file in which they are not right.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                records = archive.infolist()
                if not all(map(_is_of_torch, records)):
                    return "its list of records is damaged, or it is not written by torch.save"
                if len({record.filename for record in records}) < len(records):
                    return "its list of records is damaged"
                return "its checksum is wrong" if archive.testzip() else None
        # What zipfile raises where sizes and positions are nonsense.
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError):
            return CUT_SHORT


def _is_of_torch(record: zipfile.ZipInfo) -> bool:
    settings = record.flag_bits, record.external_attr, record.volume, record.compress_type
    return settings == AS_TORCH_WRITES and record.file_size == record.compress_size


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


class Found(NamedTuple):
    """A checkpoint to go on with."""

    file: Path | None
    passed_over: list[str]
    """Newer files that are not complete, each with what is wrong with it."""


def newest_checkpoint(run_dir: Path) -> Found:
    """The newest complete checkpoint of a run."""
    files = sorted(
        (run_dir / "checkpoints").glob("*.ckpt"),
        key=lambda path: _written(path).stat().st_mtime_ns,
        reverse=True,
    )
    passed_over: list[str] = []
    for file in files:
        reason = damage(file)
        if reason is None:
            return Found(file, passed_over)
        passed_over.append(f"{file.name}: {reason}")
    return Found(None, passed_over)


def _written(path: Path) -> Path:
    """What was written last of a checkpoint."""
    return path / INDEX if is_sharded(path) else path
