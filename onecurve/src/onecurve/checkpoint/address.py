"""Addresses such as ``s3://bucket/path``, what lies there, and whose it is.

At the address of a run lie its checkpoints, each below a name of its own that is never written to
again, and one small object, `LIST`, that says which of them are whole. It is replaced only after
all of a checkpoint is there; so what it names is whole, whenever a run is killed.

fsspec is imported where an address is used, and torch never.
"""

import json
import os
import shlex
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError, in_short, some_of

LIST = "checkpoints.json"
FORMAT = 1
EXTRAS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
EXAMPLE = "s3://BUCKET/PATH, or file:///FOLDER"
HERE = ".mirror"
"""The folder of a run directory with what is being sent, and with the name that the run has."""


class Listing(NamedTuple):
    """What is whole at an address."""

    run: str
    """The name of the run that they are of."""
    checkpoints: dict[str, Any]
    """For each name its ``folder``, ``number`` and ``files``, each of those with ``size`` in bytes
    and ``sha256``. The highest number is the newest."""


def is_address(place: str | Path) -> bool:
    """Whether a place is named by a scheme, whatever that is."""
    return "://" in str(place)


def refusal(address: str) -> str | None:
    """Why nothing can be at an address, told without asking there; None if something may."""
    scheme, separator, place = address.partition("://")
    if not separator or not place.strip("/"):
        return f"is no address; give one such as {EXAMPLE}"
    if any(sign in place for sign in "*?#"):
        return f"has one of *, ? and # in it, which mean something else; give {EXAMPLE}"
    from fsspec import available_protocols, get_filesystem_class

    if scheme not in available_protocols():
        return f"{scheme} is no scheme; use {EXAMPLE}"
    try:
        get_filesystem_class(scheme)
    except ImportError:
        package = EXTRAS.get(scheme)
        install = "'onecurve[s3]'" if scheme == "s3" else package or "what fsspec asks for"
        return f"{package or scheme} is not installed: pip install {install}"
    return None


def opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it without a slash at its end."""
    from fsspec.core import url_to_fs

    # What others have written there since is seen.
    files, path = url_to_fs(address.rstrip("/"), use_listings_cache=False)
    return files, path


def listed(files: Any, path: str) -> Listing | None:
    """The checkpoints that are whole below a path; None if no run was ever there.

    Raises:
        ValueError: If what is there is no list of this format.
    """
    try:
        found = json.loads(files.cat_file(f"{path}/{LIST}"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{LIST} has another format than {FORMAT}")
    return Listing(found["run"], found["checkpoints"])


def replace_list(files: Any, path: str, listing: Listing) -> None:
    """Say anew what is whole; a reader sees the old list or the new one."""
    text = json.dumps({"format": FORMAT, **listing._asdict()}, indent=1).encode()
    if "file" in files.protocol:
        files.makedirs(path, exist_ok=True)
        files.pipe_file(f"{path}/.{LIST}", text)
        os.replace(f"{path}/.{LIST}", f"{path}/{LIST}")
    else:  # an object is replaced whole
        files.pipe_file(f"{path}/{LIST}", text)


def name_of(run_dir: Path) -> str:
    """What the run of a directory is called at addresses, for as long as the directory is there."""
    file = run_dir / HERE / "run"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex)
    return file.read_text()


def claim(address: str, run_dir: Path, goes_on: bool) -> None:
    """Make an address that of a run, which shows that it can be written to, too.

    Args:
        address: Where the checkpoints are to be sent.
        run_dir: Whose. If it was here before, and was killed, the address is its own already.
        goes_on: Whether the run goes on from a checkpoint, and so may take another's address.

    Raises:
        UserError: If the checkpoints of another run are there, or if it cannot be written to.
    """
    try:
        files, path = opened(address)
        there, mine = listed(files, path) or Listing("", {}), name_of(run_dir)
        if there.checkpoints and there.run != mine and not goes_on:
            names, again = some_of(sorted(there.checkpoints)), shlex.quote(f"resume={address}")
            raise UserError(
                f"checkpoint.mirror_to={address}: holds the checkpoints of another run ({names}); "
                f"go on with them: {again}, or give this run an address of its own"
            )
        replace_list(files, path, Listing(mine, there.checkpoints))
    except UserError:
        raise
    # Each kind of storage has errors of its own.
    except Exception as error:
        raise UserError(
            f"checkpoint.mirror_to={address}: cannot be written to "
            f"({in_short(error) or type(error).__name__}); look whether the address and the access "
            "to it are right, or use checkpoint.mirror_to=null"
        ) from None
