"""Checkpoints at addresses such as ``s3://bucket/path``, through fsspec: find, fetch, mirror them.

At the address of a run are its checkpoints, each in a folder that is never written to again, and a
small object, `LIST`, with the run's id and its complete checkpoints: for each name the ``folder``,
``number`` (the highest is the newest) and ``files``, each of those with ``size`` and ``sha256``. It
is replaced only after all files of a checkpoint are there; so what it names is complete, whenever a
run is killed. A checkpoint is downloaded and verified first, and then read as any local file.

fsspec is imported where an address is used, and torch never.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import UserError, in_short, say, some_of
from .file import INDEX, damage, digest_of

LIST = "checkpoints.json"
FORMAT = 1
EXTRAS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
EXAMPLE = "s3://BUCKET/PATH, or file:///FOLDER"
HERE = ".mirror"  # the folder of a run directory with uploads under way, and with the run's id
WAITS = (1.0, 4.0, 15.0)  # seconds before each further attempt
# The folder of an upload: the name of a checkpoint, and a random suffix.
UPLOADED = re.compile(r".+\.ckpt\.[0-9a-f]{8}")


def is_address(place: str | Path) -> bool:
    """Whether a place begins with a scheme, known or not."""
    return "://" in str(place)


def refusal(address: str) -> str | None:
    """Why an address cannot work, found without a connection; None if it may."""
    scheme, separator, place = address.partition("://")
    if not separator or not place.strip("/"):
        return f"is not an address; give one such as {EXAMPLE}"
    if any(sign in place for sign in "*?#"):
        return f"has one of *, ? and # in it, which mean something else; give {EXAMPLE}"
    from fsspec import available_protocols, get_filesystem_class

    if scheme not in available_protocols():
        return f"{scheme} is not a known scheme; use {EXAMPLE}"
    try:
        get_filesystem_class(scheme)
    except ImportError:
        package = EXTRAS.get(scheme)
        install = "'onecurve[s3]'" if scheme == "s3" else package or "what fsspec asks for"
        return f"{package or scheme} is not installed: pip install {install}"
    return None


def _file_system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it without a slash at its end."""
    from fsspec.core import url_to_fs

    # Without a cache, what others wrote there since is seen.
    files, path = url_to_fs(address.rstrip("/"), use_listings_cache=False)
    return files, path


def _read_list(files: Any, path: str) -> dict[str, Any] | None:
    """The ``run`` at a path and its ``checkpoints``; None if no run was ever there."""
    try:
        found: Any = json.loads(files.cat_file(f"{path}/{LIST}"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{LIST} has another format than {FORMAT}")
    return found


def _write_list(files: Any, path: str, run: str, checkpoints: dict[str, Any]) -> None:
    """Replace the list; a reader sees the old one or the new one."""
    found = {"format": FORMAT, "run": run, "checkpoints": checkpoints}
    text = json.dumps(found, indent=1).encode()
    if "file" in files.protocol:
        files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/.{LIST}", text)
        os.replace(f"{path}/.{LIST}", f"{path}/{LIST}")
    else:  # an object store replaces objects atomically
        files.pipe_file(f"{path}/{LIST}", text)


def _run_id(run_dir: Path) -> str:
    """The id of a run at addresses, kept in its directory."""
    file = run_dir / HERE / "run"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex)
    return file.read_text()


def claim(address: str, run_dir: Path, resumes: bool) -> None:
    """Make an address that of a run, which also tests whether it can be written to.

    The address of another run is rejected, unless this one `resumes` from a checkpoint.
    """
    with _in_a_line("checkpoint.mirror_to", address, "written to", "use checkpoint.mirror_to=null"):
        files, path = _file_system(address)
        found, mine = _read_list(files, path) or {}, _run_id(run_dir)
        there = found.get("checkpoints", {})
        if there and found["run"] != mine and not resumes:
            names, again = some_of(sorted(there)), shlex.quote(f"resume={address}")
            raise UserError(
                f"holds the checkpoints of another run ({names}); resume from them: {again}, or "
                "give this run an address of its own"
            )
        _write_list(files, path, mine, there)


def find(key: str, address: str) -> dict[str, Any]:
    """Find the checkpoint that an address means; one process of a run asks.

    Args:
        key: The key of the configuration, such as ``resume``.
        address: Of a run, for its newest checkpoint; of one of its checkpoints by name; or of any
            file or sharded folder.

    Returns:
        Its ``name``, the ``folder`` that it is in, its ``files`` with sizes and checksums, and
        ``version``, a text that differs where the content does: for `fetch`, and for JSON.
    """
    with _in_a_line(key, address):
        if reason := refusal(address):
            raise UserError(reason)
        files, path = _file_system(address)
        parent, _, name = path.rpartition("/")
        if there := _read_list(files, path):
            return _mirrored(there["checkpoints"], path, None)
        if there := _read_list(files, parent):
            return _mirrored(there["checkpoints"], parent, name)
        return _unlisted(files, path, address)


def fetch(key: str, address: str, found: dict[str, Any]) -> Path:
    """Download what `find` has found, and verify it; one process of a machine does."""
    with _in_a_line(key, address):
        version = f"{address} {found['version']}"
        place = _cache() / hashlib.sha256(version.encode()).hexdigest()[:16]
        copy: Path = place / found["name"]
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(f"{place.name}.lock")):
            if not copy.exists():
                _download(_file_system(address)[0], found["folder"], found["files"], place)
                say(f"fetched {found['name']} from {address} to {place}")
        # Initial weights may be in a file of any kind.
        if key != "init" and (reason := damage(copy)):
            raise UserError(f"is not a complete checkpoint: {reason}; its copy is {copy}")
        return copy


def _mirrored(checkpoints: dict[str, Any], path: str, name: str | None) -> dict[str, Any]:
    """A checkpoint that a run uploaded: the newest, if none is named."""
    if name is None:
        name = max(checkpoints, key=lambda each: checkpoints[each]["number"], default="")
    if name not in checkpoints:
        names = some_of(sorted(checkpoints)) or "nothing yet"
        raise UserError(f"no checkpoint of that name is there; there is: {names}")
    entry = checkpoints[name]
    folder = f"{path}/{entry['folder']}"
    return {"name": name, "folder": folder, "files": entry["files"], "version": entry["folder"]}


def _unlisted(files: Any, path: str, address: str) -> dict[str, Any]:
    """A file, or a sharded folder, that was put there by other means."""
    folder, _, name = path.rpartition("/")
    index = f"{path}/{INDEX}"
    if files.isfile(path):
        sizes, version = {name: files.size(path)}, files.ukey(path)
    elif files.isfile(index):
        sizes = {each[len(folder) + 1 :]: files.size(each) for each in files.find(path)}
        version = files.ukey(index)
    elif files.exists(f"{path}/.hydra") or files.exists(f"{path}/checkpoints"):
        raise UserError(
            "is a run directory, which cannot be resumed there; give one of its checkpoints, "
            f"such as {address.rstrip('/')}/checkpoints/last.ckpt"
        )
    else:
        below = files.ls(path, detail=False) if files.exists(path) else []
        runs = sorted(each.rpartition("/")[2] for each in below if files.exists(f"{each}/{LIST}"))
        if runs:
            raise UserError(f"holds several runs; add the name of one: {some_of(runs)}")
        raise UserError(
            "there is no checkpoint, and no run that was mirrored; give the address that a run had "
            "as checkpoint.mirror_to"
        )
    wanted = {each: {"size": size, "sha256": None} for each, size in sizes.items()}
    return {"name": name, "folder": folder, "files": wanted, "version": str(version)}


def _download(files: Any, folder: str, wanted: dict[str, Any], place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as unfinished:
        copy = Path(unfinished, "copy").resolve()
        for relative, expected in wanted.items():
            target = (copy / relative).resolve()
            if not target.is_relative_to(copy):
                raise UserError(f"the list there names {relative}, which is outside of it")
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(f"{folder}/{relative}", str(target))
            right = expected["sha256"] in (None, digest_of(target))
            if not right or expected["size"] != target.stat().st_size:
                raise UserError(f"{relative} differs in size or checksum from what was sent")
        # Without file locks another process may have downloaded the same meanwhile.
        if not place.exists():
            copy.rename(place)


def _cache() -> Path:
    """The folder of downloads; a container's user may have no home."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Windows has a temporary folder for each user, and no user ids.
    user = os.getuid() if hasattr(os, "getuid") else "user"
    for folder in (Path(home) / "onecurve", Path(tempfile.gettempdir()) / f"onecurve-{user}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise UserError("cannot create a folder for a copy; set XDG_CACHE_HOME to a writable one")


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


class Mirror:
    """Keeps an address, `checkpoint.mirror_to`, in step with the folder of checkpoints.

    One thread uploads while training continues. A failed upload never ends a run.

    A checkpoint that waits for its upload is kept by hard links, so that it may be replaced
    meanwhile; of several with one name only the newest is uploaded.

    Args:
        address: Such as ``s3://bucket/path``; the run has claimed it (`claim`).
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
        files, path = _file_system(self.address)
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
            _write_list(files, path, _run_id(self.run_dir), there)
            self._there = there
        finally:
            self._clear(files, path)

    def _list(self, files: Any, path: str) -> dict[str, Any]:
        """The complete checkpoints of this run there."""
        there = _read_list(files, path)
        if there and there["run"] != _run_id(self.run_dir):
            raise OSError("another run has taken the address")
        self._there = there["checkpoints"] if there else {}
        return self._there

    def _clear(self, files: Any, path: str) -> None:
        """Remove what the list does not name: replaced, or incomplete since an upload failed.

        The list is read again: a new one may have arrived, and only the answer was lost. Where this
        fails, what is left only takes room.
        """
        with suppress(Exception):
            there = _read_list(files, path)
            if there is None or there["run"] != _run_id(self.run_dir):
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
