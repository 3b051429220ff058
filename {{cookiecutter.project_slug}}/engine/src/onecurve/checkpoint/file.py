"""One checkpoint file: never half written, and known to be whole before it is read.

The file is what `torch.save` writes, followed by one line with the version of the format and its
SHA-256. `torch.load` does not mind the line. A file is complete if the line is there and true: that
is told without torch.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from .sharded.folder import damage_of_folder, digest_of, set_aside, sync_folder

FORMAT = 1
TRAILER = re.compile(rb"\ncheckpoint (\d{3}) sha256 ([0-9a-f]{64})\n")
TRAILER_BYTES = len("\ncheckpoint 001 sha256 \n") + 64


def write_checkpoint(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Write a file whole or not at all: beside its place, to the disk, then by renaming.

    A reader, and a machine that loses power, sees the old file or the new one.

    Raises:
        OSError: If it cannot be written, on a full disk for example; the old file is untouched.
    """
    import torch

    _replace(Path(path), lambda file: torch.save(checkpoint, file))


def damage(path: str | Path) -> str | None:
    """What is wrong with a file, or a sharded one, in a few words; None if it is complete."""
    if Path(path).is_dir():
        return damage_of_folder(path)
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TRAILER_BYTES))
            trailer = TRAILER.fullmatch(file.read())
            if size <= TRAILER_BYTES or trailer is None:
                return "it is cut short, or not written by a training run"
            if int(trailer[1]) > FORMAT:
                return f"it has format {int(trailer[1])}, and this project reads up to {FORMAT}"
        digest = digest_of(Path(path), size - TRAILER_BYTES)
    except OSError as error:
        return str(error.strerror)
    return None if digest.encode() == trailer[2] else "its checksum is wrong"


def disk_error(error: BaseException | None) -> OSError | None:
    """The reason that torch hides behind an error of its own."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


class _Hashing:
    """A file to write to that sums up what went into it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Write and sum up."""
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        """Nothing is held back here."""


def _replace(path: Path, fill: Callable[[Any], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            hashing = _Hashing(file)
            fill(hashing)
            file.write(_trailer(hashing.digest.hexdigest()))
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
    sync_folder(path.parent)


def _trailer(digest: str) -> bytes:
    return f"\ncheckpoint {FORMAT:03} sha256 {digest}\n".encode()
