"""Text files to learn from: the sources of Python's own library, or any folder's."""

import os
import sysconfig
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from onecurve.errors import UserError

# Of Python's library: its tests, what was installed, and modules that a script made.
LEFT_OUT = {
    *("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"),
    *("encodings", "pydoc_data"),
}
# Git takes a file for text, too, if the first bytes have no zero among them.
LOOKED_AT = 8192


def place_of(text: str) -> float:
    """A number in 0..1 that follows from a text."""
    return int.from_bytes(sha256(text.encode()).digest()[:6]) / 256**6


class Source(NamedTuple):
    """A text file."""

    name: str
    """Relative to the folder that was searched."""
    file: Path

    def read(self) -> str:
        """Return its text; bytes that are not UTF-8 are replaced."""
        return self.file.read_text(encoding="utf-8", errors="replace")


def sources(root: str | None) -> list[Source]:
    """The files below a folder, or the one file, sorted by name.

    Args:
        root: A folder with text files, or one file; None for Python's own library, without its
            tests.

    Raises:
        UserError: If there is no text.
    """
    folder = Path(sysconfig.get_path("stdlib") if root is None else root).expanduser()
    files = [folder] if folder.is_file() else _files(folder, LEFT_OUT if root is None else set())
    found = sorted(
        Source(file.relative_to(folder).as_posix() if file != folder else file.name, file)
        for file in files
        if (file.suffix == ".py" if root is None else _is_text(file))
    )
    if not found:
        raise UserError(
            f"data.root={root}: no text in it; name a folder of text files, or leave data.root "
            "out, for Python's own sources"
        )
    return found


def _files(folder: Path, left_out: set[str]) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in left_out and name[0] != "."]
        yield from (Path(parent, name) for name in names if name[0] != ".")


def _is_text(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return b"\0" not in opened.read(LOOKED_AT)
