"""Python's sources where a run in an empty folder looks, read once, and texts of one's own."""

import random
from pathlib import Path

import pytest

# What is typed of data, network and task, and what the line must say.
MISTAKES = {
    "data=text data.root=nowhere": "data.root=nowhere: there is no such file; give a folder",
    "data=text data.root=empty": "data.root=empty: no text in it",
    "data=text data.root=binary strategy=ddp": "data.root=binary: no text in it",
    "data=text data.root=short": "data.root=short: 26 bytes of training text in 1 files, and a",
    "data=text data.root=texts data.val_fraction=1": "data.val_fraction=1: must be a number",
    "data=text data.val_fraction=0.5 data.test_fraction=0.5": "0 bytes of training text",
    "data=text data.context=0": "data.context=0: must be a whole number from 1",
    "model=gpt model.heads=5": "model.heads=5: must divide model.width=64; use model.heads=4",
    "model=gpt model.context=32": "model.context=32: must be at least data.context=64",
}


def write_texts(folder: Path, count: int = 40) -> None:
    """Files of some words each, in two folders."""
    draw = random.Random(0)
    for number in range(count):
        file = folder / "ab"[number % 2] / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        words = draw.choices(("one", "two", "three", "ünf"), k=draw.randint(100, 300))
        file.write_text(" ".join(words))


def write_broken(folder: Path) -> None:
    """Folders of which no run can be made."""
    # What was read of Python's sources stays, as a download would.
    sources = folder.with_name("sources")
    sources.mkdir(exist_ok=True)
    (folder / "data").symlink_to(sources)
    write_texts(folder / "texts")
    for name in ("empty", "binary", "short"):
        (folder / name).mkdir()
    (folder / "binary/picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "short/alphabet.txt").write_text("abcdefghijklmnopqrstuvwxyz")


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    (folder / "data").mkdir()
    write_texts(folder / "texts")
    return folder


@pytest.fixture
def small_data(small_files: Path, tmp_path: Path) -> None:
    """The text that is read once in data/, one's own in texts/."""
    for name in ("data", "texts"):
        (tmp_path / name).symlink_to(small_files / name)
