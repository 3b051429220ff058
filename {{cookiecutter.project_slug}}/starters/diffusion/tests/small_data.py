"""Small data sets in the formats of the real ones, where a run in an empty folder looks."""

from pathlib import Path

import numpy as np
import pytest
from conftest import composed
from hydra.utils import instantiate

TRAIN, TEST = 5100, 20  # more than the 5,000 that are held out for validation


def write_mnist(folder: Path, train: int = TRAIN, test: int = TEST) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = (0x800 + array.ndim, *array.shape)
            content = np.array(head, dtype=">i4").tobytes() + array.tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(content)


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of noise, and judges who have looked at the training images."""
    folder = tmp_path_factory.mktemp("small")
    for name in ("MNIST", "FashionMNIST"):
        write_mnist(folder / name / "raw")
    for name in ("digits", "mnist", "fashion_mnist"):
        data = instantiate(composed(f"data={name}", f"data.root={folder}").data)
        data.setup("test")
        data.judge()
    return folder


@pytest.fixture
def small_data(small_files: Path, tmp_path: Path) -> None:
    """Data sets and judges in data/."""
    (tmp_path / "data").symlink_to(small_files)
