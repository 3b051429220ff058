"""A sharded checkpoint: a folder that is whole or not there, as a single file is.

    last.ckpt/
        index.json    which folder beside it is complete, and the SHA-256 of each of its files
        1f0c.../      .metadata and *.distcp, PyTorch's distributed checkpoint; and rest.ckpt

A new one is written into the same folder as the old, and takes its place when index.json is
replaced. torch is not imported.
"""

import hashlib
import json
import os
import shutil
from functools import lru_cache
from pathlib import Path

from ..file import INDEX, sync_folder

FORMAT = 1


def complete_folder(path: str | Path) -> Path:
    """The folder with the files of a sharded checkpoint."""
    return Path(path, json.loads(Path(path, INDEX).read_text())["folder"])


def damage_of_folder(path: str | Path) -> str | None:
    """What is wrong with a sharded checkpoint, in a few words; None if it is complete."""
    try:
        index = json.loads(Path(path, INDEX).read_text())
        if index["format"] > FORMAT:
            return f"it has format {index['format']}, and this project reads up to {FORMAT}"
        folder = Path(path, index["folder"])
        for name, digest in index["files"].items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if digest_of(folder / name) != digest:
                return f"the checksum of {name} is wrong"
    except OSError as error:
        return str(error.strerror)
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{INDEX} is not what a training run writes"
    return None


def commit(path: Path, folder: str, digests: dict[str, str]) -> None:
    """Make a folder below `path` the checkpoint, and remove the one that it replaces.

    Raises:
        OSError: If the disk is full; the old one is untouched.
    """
    index = {"format": FORMAT, "folder": folder, "files": digests}
    unfinished = path / f".{INDEX}"
    with unfinished.open("w") as file:
        json.dump(index, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for changed in (path / folder, path):
        sync_folder(changed)
    unfinished.replace(path / INDEX)
    for changed in (path, path.parent):
        sync_folder(changed)
    for other in path.iterdir():
        if other.is_dir() and other.name != folder:
            shutil.rmtree(other)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file. A process reads a file once, while it stays as it is."""
    now = path.stat()
    return _digest(path, now.st_size, now.st_mtime_ns)


@lru_cache
def _digest(path: Path, *version: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
