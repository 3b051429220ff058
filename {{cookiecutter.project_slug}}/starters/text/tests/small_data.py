"""Python's sources where a run in an empty folder looks, read once, and texts of one's own."""

import random
from pathlib import Path

import pytest

SMALL = ("model.width=64", "model.depth=2", "model.heads=4", "data.context=64")
# What a choice needs beside its name.
NEEDS = {"experiment/gpt_gpu": (*SMALL, "data.train_bytes=20000", "compile_backend=eager")}


def write_texts(folder: Path, count: int = 40) -> None:
    """Files of some words each, in two folders."""
    draw = random.Random(0)
    for number in range(count):
        file = folder / "ab"[number % 2] / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        words = draw.choices(("one", "two", "three", "ünf"), k=draw.randint(100, 300))
        file.write_text(" ".join(words))


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
