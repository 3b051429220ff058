"""Small data sets in the formats of the real ones, where a run looks for them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import resnet18

# What is typed, and what the line must say, beside files of `write_broken`.
MISTAKES = {
    "data=image_folder": "data.root is needed",
    "data=image_folder data.root=nowhere": "data.root=nowhere: no such folder",
    "data=image_folder data.root=empty": "data.root=empty: no class folder",
    "data=image_folder data.root=bare": "no image in bare/dog",
    "data=image_folder data.root=few": "2 samples",
    "data=image_folder data.root=broken": "broken/cat/5.png",
    "data=image_folder data.root=broken data.in_memory=true": "broken/cat/5.png",
    "data=image_folder data.root=broken strategy=ddp": "broken/cat/5.png",
    "data=image_folder data.root=broken data.channels=2": "data.channels=2: must be 1, 3 or 4",
    "data=mnist": "use data=digits, which needs no download",
    "data=fashion_mnist strategy=ddp": "use data=digits, which needs no download",
    "data=mnist data.name=MNITS": "data.name=MNITS: must be one of MNIST",
    "model=lenet data.image_size=28": "data.image_size=32",
    "init=xavier model=resnet model.weights=DEFAULT": "init=default",
    "model=resnet model.weights=DEFAULT": "model.weights=null",
    "model=resnet model.weights=IMAGENET": "resnet18 has IMAGENET1K_V1",
    "model=resnet model.name=resnet81": "try resnet18",
    "model=resnet model.name=squeezenet1_0": "does not end in a linear layer",
    "model=resnet model.name=vit_b_16 model.small_images=true": "only for ResNets",
    "+optimizer.lr_scale.c9=0.1 model=lenet": "optimizer.lr_scale.c9: no parameter name begins",
    "task=segmentation": "use data=scenes model=unet",
    "task=multi_label": "use data=scene_labels",
    "data=scenes": "the targets of these data do not fit the task; use data=digits",
    "model=unet": "task=classification: this network predicts labels of each pixel",
    "experiment=segmentation model=mlp": "labels of an image as a whole; use data=scenes model",
    "experiment=segmentation data.image_size=7": "try data.image_size=32",
    "experiment=segmentation data.held_out=[2000,1]": "cannot be split into a training part",
}
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


def write_broken(folder: Path) -> None:
    """Invalid folders of images."""
    (folder / "empty").mkdir()
    for root, count in {"few": (1, 1), "bare": (3, 0), "broken": (10, 10)}.items():
        for name, number in zip(("cat", "dog"), count, strict=True):
            write_images(folder / root / name, number)
    (folder / "broken/cat/5.png").write_bytes(b"not an image")


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
