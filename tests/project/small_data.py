"""Small data sets in the formats of the real ones, where a run looks for them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import resnet18

# What a choice needs beside its name.
NEEDS = {
    "data/image_folder": ("data.root=photos",),
    "data/scene_labels": ("experiment=multi_label",),
    "data/scenes": ("experiment=segmentation",),
    "experiment/finetune_resnet": ("data.root=photos",),
    "model/unet": ("experiment=segmentation",),
    "task/multi_label": ("experiment=multi_label",),
    "task/segmentation": ("experiment=segmentation",),
}
TRAIN, TEST = 5100, 20  # more than the 5,000 that are held out for validation


def random_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def write_mnist(folder: Path, train: int = TRAIN, test: int = TEST) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", test)):
        images = random_images(count, 28, 28)
        labels = np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = (0x800 + array.ndim, *array.shape)
            content = np.array(head, dtype=">i4").tobytes() + array.tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(content)


def write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    sizes = {f"data_batch_{number}": TRAIN // 5 for number in range(1, 6)} | {"test_batch": TEST}
    for name, count in sizes.items():
        labels = [number % 10 for number in range(count)]
        content = {"data": random_images(count, 3072), "labels": labels}
        (folder / name).write_bytes(pickle.dumps(content))
    names = {"label_names": [str(number) for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))


def write_images(folder: Path, count: int, name: str = "{}.png") -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(random_images(20, 30, 3)).save(folder / name.format(number))


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_mnist(folder / "data/MNIST/raw")
    write_mnist(folder / "data/FashionMNIST/raw")
    write_cifar10(folder / "data/cifar-10-batches-py")
    for name in ("cat", "dog"):
        write_images(folder / "photos" / name, 20)
    weights = folder / "torch/hub/checkpoints/resnet18-f37072fd.pth"
    weights.parent.mkdir(parents=True)
    torch.save(resnet18().state_dict(), weights)
    return folder


@pytest.fixture
def small_data(small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets in data/, images in photos/, and the pretrained weights of ResNet-18."""
    for name in ("data", "photos"):
        (tmp_path / name).symlink_to(small_files / name)
    monkeypatch.setenv("TORCH_HOME", str(small_files / "torch"))
    # torchvision compares checksums, and these are not the real files.
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
