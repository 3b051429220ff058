"""`checkpoint.mirror_to=ADDRESS`: upload each complete checkpoint to an address as well.

One thread uploads while training continues. A failed upload never ends a run.
"""

import os
import re
import shutil
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import in_short, say
from .file import INDEX, digest_of
from .remote import HERE, file_system, read_list, run_id, write_list

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
        self._thread = ThreadPoolExecutor(1, "mirror")
        # For each name the newest request, and the staged copy that it uploads.
        self._requests: dict[str, tuple[Future[None], Path | None]] = {}
        self._there: dict[str, Any] = {}
        self._failed: dict[str, str] = {}

    def put(self, path: Path) -> None:
        """Upload a complete checkpoint: a file, or the folder of a sharded one."""
        try:
            if not self._requests:
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
        if not self._requests and not self._failed:
            return
        wait([request for request, _ in self._requests.values()])
        there = ", ".join(sorted(self._there))
        line = f"mirror: {self.address} has {there or 'nothing of this process'}"
        for name, reason in self._failed.items():
            line += f"; the newest {name} is not there: {reason}"
        say(line)

    def _request(self, name: str, staged: Path | None) -> None:
        earlier, waiting = self._requests.get(name, (None, None))
        if earlier and earlier.cancel() and waiting:
            shutil.rmtree(waiting, ignore_errors=True)
        self._requests[name] = self._thread.submit(self._work, name, staged), staged

    def _work(self, name: str, staged: Path | None) -> None:
        if staged is None and self._failed:
            return
        for seconds in (*WAITS, None):
            try:
                self._change(name, staged)
                self._failed.pop(name, None)
                break
            # Each kind of storage raises errors of its own, and none should end a run.
            except Exception as error:
                reason = in_short(error) or type(error).__name__
            if seconds is not None:
                time.sleep(seconds)
                continue
            self._failed[name] = reason
            say(f"mirror: {name} could not be sent to {self.address}: {reason}; training continues")
        if staged:
            shutil.rmtree(staged, ignore_errors=True)

    def _change(self, name: str, staged: Path | None) -> None:
        """Upload a staged checkpoint, or remove the one there; only then the list changes."""
        files, path = file_system(self.address)
        there = self._list(files, path)
        try:
            if staged:
                # A new folder each time: a killed run leaves the old one complete.
                folder, sent = f"{name}.{uuid.uuid4().hex[:8]}", {}
                every = [each for each in staged.rglob("*") if each.is_file()]
                # The index, which makes a folder a checkpoint, is the last.
                for file in sorted(every, key=lambda file: (file.name == INDEX, file)):
                    relative = file.relative_to(staged).as_posix()
                    sent[relative] = _sent(files, file, f"{path}/{folder}/{relative}")
                number = 1 + max((each["number"] for each in there.values()), default=0)
                there = {**there, name: {"folder": folder, "number": number, "files": sent}}
            elif name in there:
                there = {each: entry for each, entry in there.items() if each != name}
            write_list(files, path, run_id(self.run_dir), there)
            self._there = there
        finally:
            self._clear(files, path)

    def _list(self, files: Any, path: str) -> dict[str, Any]:
        """The complete checkpoints of this run there."""
        there = read_list(files, path)
        if there and there["run"] != run_id(self.run_dir):
            raise OSError("another run has taken the address")
        self._there = there["checkpoints"] if there else {}
        return self._there

    def _clear(self, files: Any, path: str) -> None:
        """Remove what the list does not name: replaced, or incomplete since an upload failed.

        The list is read again: a new one may have arrived, and only the answer was lost. Where this
        fails, what is left only takes room.
        """
        with suppress(Exception):
            there = read_list(files, path)
            if there is None or there["run"] != run_id(self.run_dir):
                return
            named = {entry["folder"] for entry in there["checkpoints"].values()}
            for each in files.ls(path, detail=False):
                folder = each.rstrip("/").rpartition("/")[2]
                if UPLOADED.fullmatch(folder) and folder not in named:
                    files.rm(f"{path}/{folder}", recursive=True)


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
