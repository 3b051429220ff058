"""Small data sets in the formats of the real ones, and the data modules that read them."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from onecurve.command.resolvers import register_resolvers
from onecurve.data.images import ImageDataModule
from PIL import Image
from torchvision import datasets

CONFIGS = ROOT / "configs"


def random_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def write_mnist(folder: Path, train: int = 60, test: int = 20) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", test)):
        images = random_images(count, 28, 28)
        labels = np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = (0x800 + array.ndim, *array.shape)
            content = np.array(head, dtype=">i4").tobytes() + array.tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(content)


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)

    def write(name: str, content: dict[str, Any]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(name: str) -> list[str]:
        return write(name, {"data": random_images(20, 3072), "labels": [n % 10 for n in range(20)]})

    # torchvision compares checksums, and these are not the real files.
    cifar = datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", [batch(f"data_batch_{n}") for n in range(1, 6)])
    monkeypatch.setattr(cifar, "test_list", [batch("test_batch")])
    meta = write("batches.meta", {"label_names": [str(n) for n in range(10)]})
    monkeypatch.setattr(cifar, "meta", {**cifar.meta, "md5": meta[1]})


def write_images(folder: Path, count: int, name: str = "{}.png") -> list[Path]:
    folder.mkdir(parents=True)
    files = [folder / name.format(number) for number in range(count)]
    for file in files:
        Image.fromarray(random_images(20, 30, 3)).save(file)
    return files


def build(name: str, *overrides: str) -> ImageDataModule:
    register_resolvers()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", overrides=[f"data={name}", *overrides])
    try:
        module: ImageDataModule = instantiate(config.data)
    except InstantiationException as error:
        # Hydra wraps what a class raises, and the engine unwraps it too.
        raise (error.__cause__ or error) from None
    return module


def load(name: str, *overrides: str) -> ImageDataModule:
    module = build(name, *overrides)
    module.prepare_data()
    module.setup("fit")
    return module


def sizes(module: ImageDataModule) -> list[int]:
    assert module.datasets is not None
    return [len(dataset) for dataset in module.datasets]
