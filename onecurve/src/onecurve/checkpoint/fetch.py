"""Checkpoints at an address are fetched first, verified, and then read as any file is.

torch is not imported.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import lock
from ..errors import UserError, in_short, say, some_of
from .address import LIST, Listing, listed, opened, refusal
from .file import INDEX, damage


def find(key: str, address: str) -> dict[str, Any]:
    """Which version of which checkpoint is meant by an address: asked by one process of a run.

    Args:
        key: What was typed, such as ``resume``.
        address: Of a run, whose newest checkpoint is meant; of one of its checkpoints by name; or
            of any file or sharded folder.

    Returns:
        Its ``name``, the ``folder`` there that it lies in, its ``files`` with sizes and checksums,
        and ``version``, a text that no other content has: what `fetch` takes, and JSON can hold.

    Raises:
        UserError: If there is none.
    """
    with _in_a_line(key, address):
        if reason := refusal(address):
            raise UserError(reason)
        files, path = opened(address)
        parent, _, name = path.rpartition("/")
        if there := listed(files, path):
            return _entry(there, path, None)
        if there := listed(files, parent):
            return _entry(there, parent, name)
        return _loose(files, path, address)


def fetch(key: str, address: str, found: dict[str, Any]) -> Path:
    """A copy on this machine of what `find` has found; one process of a machine fetches.

    Raises:
        UserError: If it does not arrive as it was sent.
    """
    with _in_a_line(key, address):
        version = f"{address} {found['version']}"
        place = _cache() / hashlib.sha256(version.encode()).hexdigest()[:16]
        copy: Path = place / found["name"]
        with lock.waiting_for(place.with_name(f"{place.name}.lock")):
            if not copy.exists():
                _fetch(opened(address)[0], found["folder"], found["files"], place)
                say(f"fetched {found['name']} from {address} to {place}")
        # Weights to begin with may be in a file of any kind.
        if key != "init" and (reason := damage(copy)):
            raise UserError(f"is no complete checkpoint: {reason}; its copy is {copy}")
        return copy


def _entry(there: Listing, path: str, name: str | None) -> dict[str, Any]:
    """A checkpoint that a run has sent: the newest, if none is named."""
    checkpoints = there.checkpoints
    if name is None:
        name = max(checkpoints, key=lambda each: checkpoints[each]["number"], default="")
    if name not in checkpoints:
        names = some_of(sorted(checkpoints)) or "nothing yet"
        raise UserError(f"no checkpoint of that name is there; there is: {names}")
    entry = checkpoints[name]
    folder = f"{path}/{entry['folder']}"
    return {"name": name, "folder": folder, "files": entry["files"], "version": entry["folder"]}


def _loose(files: Any, path: str, address: str) -> dict[str, Any]:
    """A file, or a sharded folder, that somebody else has put there."""
    folder, _, name = path.rpartition("/")
    index = f"{path}/{INDEX}"
    if files.isfile(path):
        sizes, version = {name: files.size(path)}, files.ukey(path)
    elif files.isfile(index):
        sizes = {each[len(folder) + 1 :]: files.size(each) for each in files.find(path)}
        version = files.ukey(index)
    elif files.exists(f"{path}/.hydra") or files.exists(f"{path}/checkpoints"):
        raise UserError(
            "is a run directory, which cannot be gone on with there; give one of its checkpoints, "
            f"such as {address.rstrip('/')}/checkpoints/last.ckpt"
        )
    else:
        below = files.ls(path, detail=False) if files.exists(path) else []
        runs = sorted(each.rpartition("/")[2] for each in below if files.exists(f"{each}/{LIST}"))
        if runs:
            raise UserError(f"is that of several runs; add the name of one: {some_of(runs)}")
        raise UserError(
            "there is no checkpoint, and no run that was mirrored; give the address that a run had "
            "as checkpoint.mirror_to"
        )
    wanted = {each: {"size": size, "sha256": None} for each, size in sizes.items()}
    return {"name": name, "folder": folder, "files": wanted, "version": str(version)}


def _fetch(files: Any, folder: str, wanted: dict[str, Any], place: Path) -> None:
    # Its own: where a file system has no locks another process may be fetching the same.
    unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        for relative, expected in wanted.items():
            target = unfinished / relative
            if not target.resolve().is_relative_to(unfinished.resolve()):
                raise UserError(f"the list there names {relative}, which is outside of it")
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(f"{folder}/{relative}", str(target))
            with target.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            right = expected["sha256"] in (None, digest)
            if not right or expected["size"] != target.stat().st_size:
                raise UserError(f"{relative} is not as it was sent: its size or checksum differs")
        if not place.exists():
            unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _cache() -> Path:
    """Where copies lie; a container's user may have no home."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Windows has a folder for each user already, and no numbers of them.
    user = os.getuid() if hasattr(os, "getuid") else "user"
    for folder in (Path(home) / "onecurve", Path(tempfile.gettempdir()) / f"onecurve-{user}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise UserError("no folder for a copy can be made; set XDG_CACHE_HOME to one that can")


@contextmanager
def _in_a_line(key: str, address: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}={address}: {error}") from None
    # Each kind of storage has errors of its own.
    except Exception as error:
        raise UserError(
            f"{key}={address}: cannot be fetched ({in_short(error) or type(error).__name__}); "
            "look whether the address and the access to it are right, or give a local file"
        ) from None
