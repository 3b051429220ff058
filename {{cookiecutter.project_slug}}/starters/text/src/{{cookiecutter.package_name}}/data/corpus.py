"""Text files as one file of bytes, which is written once and memory-mapped."""

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from onecurve.errors import UserError

# In Python's library: its tests, installed packages, and generated modules.
LEFT_OUT = {
    *("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"),
    *("encodings", "pydoc_data"),
}
# Like git, treat a file as text if its first bytes contain no zero.
LOOKED_AT = 8192


class Piece(NamedTuple):
    """A whole file, or a part of one, as bytes of text."""

    name: str
    file: Path
    start: int
    size: int

    @property
    def place(self) -> float:
        """A number in 0..1 that depends on the name of the file, and the position in it."""
        digest = sha256(f"{self.name}:{self.start}".encode()).digest()
        return int.from_bytes(digest[:6]) / 256**6


Parts = Mapping[str, Sequence[Piece]]


def pieces(root: str | None, piece_bytes: int | None) -> Iterator[Piece]:
    """The pieces of text to read.

    Args:
        root: A folder with text files, or one file; None stands for the sources of Python's own
            library, without its tests.
        piece_bytes: Split longer files into pieces of this many bytes; None splits none.
    """
    folder = Path(sysconfig.get_path("stdlib") if root is None else root).expanduser()
    for file in [folder] if folder.is_file() else _files(folder, LEFT_OUT if root is None else ()):
        if not (file.suffix == ".py" if root is None else _is_text(file)):
            continue
        name = file.relative_to(folder).as_posix() if file != folder else file.name
        size = file.stat().st_size
        for start in range(0, size, piece_bytes or max(size, 1)):
            yield Piece(name, file, start, min(size - start, piece_bytes or size))


def split(found: Iterator[Piece], val_fraction: float, test_fraction: float) -> Parts:
    """Split pieces into training, validation and test text by their places.

    A piece stays in its part if others are added or removed. Within a part pieces are in the order
    of their places, so that its first bytes are a sample of all.
    """
    parts: dict[str, list[Piece]] = {"train": [], "val": [], "test": []}
    for piece in sorted(found, key=lambda piece: (piece.place, piece.name, piece.start)):
        held_out = "test" if piece.place < test_fraction else "val"
        parts[held_out if piece.place < test_fraction + val_fraction else "train"].append(piece)
    return parts


def file_of(parts: Parts, folder: Path) -> Path:
    """The file with the bytes of these pieces, part by part; its name depends on them."""
    key = sha256()
    for part, those in parts.items():
        for piece in those:
            changed = piece.file.stat().st_mtime_ns
            key.update(f"{part} {piece.file} {piece.start} {piece.size} {changed}\n".encode())
    return folder / f"{key.hexdigest()[:16]}.bytes"


def write(parts: Parts, place: Path) -> None:
    """Write the bytes atomically, unless the file exists.

    Raises:
        UserError: If a file changes while it is read.
    """
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    # Another node may write it at the same time.
    unfinished = place.with_suffix(f".{uuid4().hex}.new")
    try:
        with unfinished.open("wb") as out:
            for piece in (piece for those in parts.values() for piece in those):
                with piece.file.open("rb") as file:
                    file.seek(piece.start)
                    if out.write(file.read(piece.size)) != piece.size:
                        raise UserError(f"data.root: {piece.file} became shorter while it was read")
        unfinished.replace(place)
    finally:
        unfinished.unlink(missing_ok=True)


def _files(folder: Path, left_out: Sequence[str] | set[str]) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in left_out and name[0] != "."]
        yield from (Path(parent, name) for name in names if name[0] != ".")


def _is_text(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return b"\0" not in opened.read(LOOKED_AT)
