"""`checkpoint.mirror_to=ADDRESS`: upload each complete checkpoint to an address as well.

One thread uploads while training continues. A failed upload never ends a run.
"""

import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import in_short, say
from .file import INDEX, digest_of
from .remote import HERE, Listing, file_system, read_listing, run_id, write_listing

WAITS = (1.0, 4.0, 15.0)  # seconds before each further attempt
# The folder of an upload: the name of a checkpoint, and a random suffix.
UPLOADED = re.compile(r".+\.ckpt\.[0-9a-f]{8}")


class Mirror:
    """Keeps an address in step with the folder of checkpoints.

    A checkpoint that waits for its upload is kept by hard links, so that it may be replaced
    meanwhile; of several with one name only the newest is uploaded.

    Args:
        address: Such as ``s3://bucket/path``; the run has claimed it (`remote.claim`).
        run_dir: The directory of the run.
    """

    def __init__(self, address: str, run_dir: Path) -> None:
        self.address = address.rstrip("/")
        self.run_dir = run_dir
        # For each name its staged copy; None if it is to be removed.
        self._waiting: dict[str, Path | None] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "mirror")
        # The request that was made last, which the one thread ends last.
        self._newest: Future[None] | None = None
        self._there: Listing | None = None
        self._failed: dict[str, str] = {}

    def put(self, path: Path) -> None:
        """Upload a complete checkpoint: a file, or the folder of a sharded one."""
        try:
            if self._newest is None:
                for left in (self.run_dir / HERE).glob("*/"):  # by a process that was killed
                    shutil.rmtree(left, ignore_errors=True)
            self._request(path.name, _staged(path, self.run_dir / HERE))
        except OSError as error:
            self._failed[path.name] = in_short(error)

    def remove(self, path: Path) -> None:
        """Remove it there, too, unless the upload of its replacement failed."""
        self._request(path.name, None)

    def finish(self) -> None:
        """Wait for all uploads, and print what is there and what is not."""
        if self._newest is None and not self._failed:
            return
        if self._newest is not None:
            wait([self._newest])
        there = sorted(self._there.checkpoints) if self._there else []
        line = f"mirror: {self.address} has {', '.join(there) or 'nothing of this process'}"
        for name, reason in self._failed.items():
            line += f"; the newest {name} is not there: {reason}"
        say(line)

    def _request(self, name: str, staged: Path | None) -> None:
        with self._lock:
            earlier = self._waiting.get(name)
            self._waiting[name] = staged
        self._newest = self._thread.submit(self._work, name)
        if earlier:
            shutil.rmtree(earlier, ignore_errors=True)

    def _work(self, name: str) -> None:
        with self._lock:
            if name not in self._waiting:  # an earlier request has done it
                return
            staged = self._waiting.pop(name)
        if staged:
            self._try(name, partial(self._upload, name, staged))
            shutil.rmtree(staged, ignore_errors=True)
        elif not self._failed:
            self._try(name, partial(self._delete, name))

    def _try(self, name: str, work: Callable[[], None]) -> None:
        for seconds in (*WAITS, None):
            try:
                work()
                self._failed.pop(name, None)
                return
            # Each kind of storage raises errors of its own, and none should end a run.
            except Exception as error:
                reason = in_short(error) or type(error).__name__
            if seconds is not None:
                time.sleep(seconds)
        self._failed[name] = reason
        say(f"mirror: {name} could not be sent to {self.address}: {reason}; training continues")

    def _upload(self, name: str, staged: Path) -> None:
        files, path = file_system(self.address)
        there = self._list(files, path)
        # A new one each time: a killed run leaves the old one complete.
        folder = f"{name}.{uuid.uuid4().hex[:8]}"
        try:
            sent = {}
            # The index, which makes a folder a checkpoint, is the last.
            every = [each for each in staged.rglob("*") if each.is_file()]
            for file in sorted(every, key=lambda file: (file.name == INDEX, file)):
                relative = file.relative_to(staged).as_posix()
                sent[relative] = _sent(files, file, f"{path}/{folder}/{relative}")
            number = 1 + max((each["number"] for each in there.checkpoints.values()), default=0)
            entry = {"folder": folder, "number": number, "files": sent}
            self._replace(files, path, {**there.checkpoints, name: entry})
        except BaseException:
            # The new list may have arrived all the same, and only the answer was lost.
            with suppress(Exception):
                if folder not in _named(self._list(files, path)):
                    _remove(files, f"{path}/{folder}")
            raise
        self._clear(files, path)

    def _delete(self, name: str) -> None:
        files, path = file_system(self.address)
        there = dict(self._list(files, path).checkpoints)
        if there.pop(name, None):
            self._replace(files, path, there)
            self._clear(files, path)

    def _list(self, files: Any, path: str) -> Listing:
        mine = run_id(self.run_dir)
        there = read_listing(files, path) or Listing(mine, {})
        if there.run != mine:
            raise OSError("another run has taken the address")
        self._there = there
        return there

    def _replace(self, files: Any, path: str, checkpoints: dict[str, Any]) -> None:
        listing = Listing(run_id(self.run_dir), checkpoints)
        write_listing(files, path, listing)
        self._there = listing

    def _clear(self, files: Any, path: str) -> None:
        """Remove what the list does not name: replaced, or incomplete since a run was killed."""
        with suppress(Exception):
            for each in files.ls(path, detail=False):
                folder = each.rstrip("/").rpartition("/")[2]
                if UPLOADED.fullmatch(folder) and self._there and folder not in _named(self._there):
                    _remove(files, f"{path}/{folder}")


def _named(listing: Listing) -> set[str]:
    return {entry["folder"] for entry in listing.checkpoints.values()}


def _remove(files: Any, folder: str) -> None:
    # The list does not name it: where this fails it only takes room.
    with suppress(Exception):
        files.rm(folder, recursive=True)


def _staged(path: Path, root: Path) -> Path:
    """A folder with hard links to a checkpoint."""
    staged = root / uuid.uuid4().hex[:8]
    staged.mkdir(parents=True)
    if path.is_dir():
        shutil.copytree(path, staged / path.name, copy_function=_link)
    else:
        _link(path, staged / path.name)
    return staged


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system has hard links
        shutil.copyfile(source, target)


def _sent(files: Any, source: Path, target: str) -> dict[str, Any]:
    if "file" in files.protocol:
        files.makedirs(target.rpartition("/")[0], exist_ok=True)
    files.put_file(str(source), target)
    size = source.stat().st_size
    if (arrived := files.size(target)) != size:
        raise OSError(f"{arrived} of {size} bytes arrived")
    return {"size": size, "sha256": digest_of(source)}
