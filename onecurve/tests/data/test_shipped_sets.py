"""The data sets that come with the library: what they hold, and how they are downloaded."""

import gzip
import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from onecurve.data.digits import Digits
from onecurve.data.torchvision_sets import TorchvisionImages
from onecurve.errors import UserError

OPTIONS: dict[str, Any] = {
    "class_names": [str(number) for number in range(10)],
    "num_classes": 10,
    "channels": 1,
    "resize": "pad",
    "batch_size": 32,
    "num_workers": 0,
    "mean": [0.3053],
    "std": [0.3233],
    "augment": {},
}


def load(module: Any) -> Any:
    module.prepare_data()
    module.setup("fit")
    return module


def sizes(module: Any) -> list[int]:
    return [len(dataset) for dataset in module.datasets]


def digits(split_seed: int = 0) -> Any:
    split = {"val_size": 200, "test_size": 300, "split_seed": split_seed}
    return load(Digits(root=None, image_size=8, **split, **OPTIONS))


def test_digits_are_those_of_scikit_learn_and_split_the_same_way_each_time() -> None:
    from sklearn.datasets import load_digits

    first, again, other = digits(), digits(), digits(split_seed=1)
    assert sizes(first) == [1297, 200, 300]
    assert torch.equal(first.datasets[2].labels, again.datasets[2].labels)
    images = torch.cat([part.images for part in first.datasets]).flatten(1)
    expected = torch.from_numpy(load_digits().data).mul(255 / 16).round().to(torch.uint8)
    assert sorted(images.tolist()) == sorted(expected.tolist())
    assert not torch.equal(first.datasets[2].images, other.datasets[2].images)


def write_mnist(folder: Path, train: int, test: int) -> Any:
    """Files of its format; returns the images of the test."""
    folder.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = (0x800 + array.ndim, *array.shape)
            content = np.array(head, dtype=">i4").tobytes() + array.tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(content)
    return images


def mnist(root: Path, val_size: int) -> Any:
    name = {"name": "MNIST", "val_size": val_size, "split_seed": 0}
    return load(TorchvisionImages(root=str(root), image_size=32, **name, **OPTIONS))


def test_mnist_is_downloaded_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    served, root = tmp_path / "served", tmp_path / "data"
    expected = torch.from_numpy(write_mnist(served, train=60, test=20))
    resources = []
    for file in sorted(served.iterdir()):
        packed = gzip.compress(file.read_bytes())
        (served / f"{file.name}.gz").write_bytes(packed)
        resources.append((f"{file.name}.gz", hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    handler = partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        mirrors = [f"http://127.0.0.1:{server.server_port}/"]
        monkeypatch.setattr(datasets.MNIST, "mirrors", mirrors)
        monkeypatch.setattr(datasets.MNIST, "resources", resources)
        module = mnist(root, 10)
        server.shutdown()
    assert sizes(module) == [50, 10, 20]
    assert torch.equal(module.datasets[2].images[:, 0, 2:-2, 2:-2], expected)
    assert (root / "MNIST/raw/train-images-idx3-ubyte").is_file()
    assert capfd.readouterr().err == ""
    with pytest.raises(UserError, match="60 samples"):
        mnist(root, 60)
