"""Checkpoints at addresses such as ``s3://bucket/path``, through fsspec: validate, find, download.

A run writes there by `callbacks.checkpoint.dirpath`, as Lightning does: an object store replaces an
object atomically. What a command reads from an address is downloaded first, and then read as any
local file. fsspec is imported where an address is used, and torch never.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError, in_short, say
from .file import damage

EXAMPLE = "s3://BUCKET/PATH, or file:///FOLDER"
DIRPATH = "callbacks.checkpoint.dirpath"
LAST = "last.ckpt"


def is_address(path: object) -> bool:
    """Whether a path begins with a scheme, known or not."""
    return "://" in str(path)


def refusal(address: str) -> str | None:
    """Why an address cannot work, as far as that shows without a connection; None if it may."""
    scheme, separator, path = address.partition("://")
    if not separator or not path.strip("/"):
        return f"is not an address; give one such as {EXAMPLE}"
    from fsspec import available_protocols, get_filesystem_class

    if scheme not in available_protocols():
        return f"{scheme} is not a known scheme; use {EXAMPLE}"
    try:
        get_filesystem_class(scheme)
    except ImportError as error:
        return f"a package is not installed: {in_short(error)}"
    return None


def folder_of(config: Mapping[str, Any]) -> str | None:
    """The address at which a run's callbacks write checkpoints; None for a local folder."""
    entries = (config.get("callbacks") or {}).values()
    folders = [entry.get("dirpath") for entry in entries if hasattr(entry, "get")]
    return next((str(folder).rstrip("/") for folder in folders if is_address(folder)), None)


def reject_unwritable(address: str) -> None:
    """Reject an address that cannot be written to, before hours of training are lost."""
    with _in_a_line(DIRPATH, address, "written to", "write to a folder: leave it out"):
        files, path = _file_system(address)
        if "local" in files.protocol:  # an object store has no folders, but would create a bucket
            files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/.writable", b"")
        files.rm_file(f"{path}/.writable")


def find(key: str, address: str, needed: bool = True) -> dict[str, str] | None:
    """Find the checkpoint at an address; one process of a run asks, for all to `fetch` the same.

    Args:
        key: The key of the configuration, such as ``resume``.
        address: A file, or a folder with last.ckpt, such as a run's.
        needed: Whether it is an error that there is none; else the answer is None.

    Returns:
        Its ``path`` in the file system, and a ``version`` that differs where its content does.
    """
    with _in_a_line(key, address):
        if reason := refusal(address):
            raise UserError(reason)
        files, path = _file_system(address)
        for file in (path, f"{path}/{LAST}", f"{path}/checkpoints/{LAST}"):
            if files.isfile(file):
                return {"path": file, "version": str(files.ukey(file))}
        if needed:
            raise UserError(
                "there is no checkpoint; give the address of one, such as s3://BUCKET/RUN/last.ckpt"
            )
        return None


def fetch(key: str, address: str, files: Mapping[str, str]) -> Path:
    """Download what `find` has found into the cache, and verify it."""
    with _in_a_line(key, address):
        version = hashlib.sha256(f"{address} {files['version']}".encode()).hexdigest()[:16]
        copy = _cache() / version / files["path"].rpartition("/")[2]
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            unfinished = copy.with_name(f".{copy.name}.{os.getpid()}")
            _file_system(address)[0].get_file(files["path"], str(unfinished))
            unfinished.replace(copy)
            say(f"fetched {copy.name} from {address} to {copy.parent}")
        # Initial weights may be in a file of any kind.
        if key != "init" and (reason := damage(copy)):
            copy.unlink()
            raise UserError(f"is not a complete checkpoint: {reason}")
        return copy


def bring_last(key: str, address: str, run_dir: Path) -> None:
    """Download last.ckpt of a run's address into its directory, from which it resumes in place."""
    if files := find(key, f"{address}/{LAST}", needed=False):
        copy = fetch(key, f"{address}/{LAST}", files)
        folder = run_dir / "checkpoints"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(copy, folder / f".{LAST}")
        os.replace(folder / f".{LAST}", folder / LAST)


def _file_system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it without a slash at its end."""
    from fsspec.core import url_to_fs

    # Without a cache, what others wrote there since is seen.
    files, path = url_to_fs(address.rstrip("/"), use_listings_cache=False)
    return files, path


def _cache() -> Path:
    """The folder of downloads, which nobody else can write to."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home, "onecurve")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def _in_a_line(
    key: str, address: str, what: str = "fetched", instead: str = "give a local file"
) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}={address}: {error}") from None
    # Each kind of storage raises errors of its own.
    except Exception as error:
        raise UserError(
            f"{key}={address}: cannot be {what} ({in_short(error) or type(error).__name__}); "
            f"check the address and your access to it, or {instead}"
        ) from None
