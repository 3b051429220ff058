"""Checkpoints on a disk: written atomically, and verified before they are read.

A checkpoint is one file, or the folder of a sharded one. The file is what `torch.save` writes: a
zip with a CRC-32 for each record, which `torch.load` does not look at. The folder is

    last.ckpt/
        .metadata, *.distcp    PyTorch's distributed checkpoint
        rest.ckpt              Lightning's dictionary without its tensors

A new one is written beside the old, and takes its place once it is complete. Whether a checkpoint
is complete, and which one of a run is the newest complete one, is found without importing torch.
"""

import os
import re
import shutil
import zipfile
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..errors import chain
from ..machine import is_alive

METADATA = ".metadata"  # of DCP: what makes a folder a sharded checkpoint
REST = "rest.ckpt"

# A file or folder that is being written, with the PID of its writer.
UNFINISHED = re.compile(r"\..+\.ckpt\.(\d+)")
CUT_SHORT = "it is truncated, or not written by a training run"


def is_sharded(path: str | Path) -> bool:
    """Whether a path is a sharded checkpoint, complete or not."""
    return Path(path, METADATA).is_file()


def write_checkpoint(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Write a file atomically: to a sibling temporary file, fsynced, then renamed.

    A reader, and a machine that loses power, sees the old file or the new one. After an OSError, on
    a full disk for example, the old file is untouched.
    """
    import torch

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = unfinished_of(path, os.getpid())
    try:
        with unfinished.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        put_in_place(unfinished, path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        # torch raises another in place of an OSError.
        if cause := next((each for each in chain(error) if isinstance(each, OSError)), None):
            raise cause from None
        raise


def unfinished_of(path: Path, writer: int) -> Path:
    """Where the process with this PID writes a checkpoint."""
    return path.with_name(f".{path.name}.{writer}")


def put_in_place(unfinished: Path, path: Path) -> None:
    """Replace a checkpoint by a new one; remove what writers that have ended left beside it.

    A folder cannot be replaced: the old one is found under another name until the new one is there.
    """
    earlier = path.with_name(f"{path.stem}.earlier{path.suffix}")
    if path.exists() and (path.is_dir() or unfinished.is_dir()):
        _remove(earlier)
        path.rename(earlier)
    unfinished.replace(path)
    _remove(earlier)
    for other in path.parent.iterdir():
        if (found := UNFINISHED.fullmatch(other.name)) and not is_alive(int(found[1])):
            _remove(other)
    sync_folder(path.parent)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that a rename in it survives a power failure."""
    if os.name != "posix":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def cannot_be_made(folder: Path) -> str | None:
    """Why a folder cannot be created or written to; None if it can. It is not created."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with TemporaryFile(dir=there):
            return None
    except OSError as error:
        return error.strerror


# Verification


def damage(path: str | Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None if it is complete.

    A process verifies each version of a file once.
    """
    path = Path(path)
    if path.is_dir():
        missing = [name for name in (METADATA, REST) if not (path / name).is_file()]
        return f"{missing[0]} is missing" if missing else None
    try:
        now = path.stat()
        return _damage_of_file(path, now.st_size, now.st_mtime_ns)
    except OSError as error:
        return str(error.strerror)


@lru_cache
def _damage_of_file(path: Path, *version: int) -> str | None:
    """Look at every record's checksum; torch rejects a file whose zip directory is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            if len({record.filename for record in records}) < len(records):
                return "its list of records is damaged"
            return "its checksum is wrong" if archive.testzip() else None
    # What zipfile raises where sizes and positions are nonsense.
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError):
        return CUT_SHORT


def newest_checkpoint(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint of a run, and what is wrong with newer files."""

    def written_at(path: Path) -> int:
        return (path / METADATA if is_sharded(path) else path).stat().st_mtime_ns

    passed_over: list[str] = []
    for file in sorted((run_dir / "checkpoints").glob("*.ckpt"), key=written_at, reverse=True):
        reason = damage(file)
        if reason is None:
            return file, passed_over
        passed_over.append(f"{file.name}: {reason}")
    return None, passed_over
