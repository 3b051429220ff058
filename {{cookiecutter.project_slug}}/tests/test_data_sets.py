"""The data sets that come with the project: digits, synthetic images, and torchvision's."""

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
from onecurve.errors import UserError
from small_data import build, load, random_images, sizes, write_mnist
from torchvision import datasets

from {{ cookiecutter.package_name }}.data.digits import digits_file


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send every download to a port where nobody listens."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")


def test_digits_are_split_the_same_way_each_time() -> None:
    first, second = load("digits"), load("digits", "seed=7")
    assert sizes(first) == [1297, 200, 300]
    for one, other in zip(first.datasets or (), second.datasets or (), strict=True):
        assert torch.equal(one.images, other.images)
    other = load("digits", "data.split_seed=1")
    assert not torch.equal(first.datasets[2].images, other.datasets[2].images)


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    table = np.loadtxt(digits_file(), delimiter=",")
    digits = load_digits()
    assert (table[:, :64] == digits.data).all()
    assert (table[:, 64] == digits.target).all()


def test_digits_are_normalized() -> None:
    module = load("digits", "data.batch_size=2000")
    images, _ = next(iter(module.train_dataloader()))
    inputs = module.normalize(images)
    assert abs(inputs.mean()) < 0.05
    assert abs(inputs.std() - 1) < 0.05


def test_synthetic_images_can_be_learned_and_repeat() -> None:
    shape = ("data.channels=2", "data.image_size=9", "data.num_classes=4")
    module, again = load("synthetic", *shape), load("synthetic", *shape)
    train, _, test = module.datasets or ()
    assert torch.equal(train.images, again.datasets[0].images)
    assert train.images.shape == (2000, 2, 9, 9)
    means = torch.stack([train.images[train.labels == n].float().mean(0) for n in range(4)])
    distances = torch.cdist(test.images.float().flatten(1), means.flatten(1))
    assert (distances.argmin(1) == test.labels).float().mean() > 0.95
    other = load("synthetic", *shape, "data.seed=1")
    assert not torch.equal(train.images, other.datasets[0].images)


def test_mnist_holds_validation_images_out_of_the_training_files(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", train=60, test=20)
    module = load("mnist", f"data.root={tmp_path}", "data.val_size=10")
    assert sizes(module) == [50, 10, 20]
    test = (module.datasets or ())[2]
    expected = torch.from_numpy(random_images(20, 28, 28))
    assert torch.equal(test.images[:, 0, 2:-2, 2:-2], expected)
    with pytest.raises(UserError, match="60 samples"):
        load("mnist", f"data.root={tmp_path}")


def test_mnist_is_downloaded_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    served = tmp_path / "served"
    write_mnist(served)
    resources = []
    for file in sorted(served.iterdir()):
        packed = gzip.compress(file.read_bytes())
        (served / f"{file.name}.gz").write_bytes(packed)
        resources.append((f"{file.name}.gz", hashlib.md5(packed).hexdigest()))
    handler = partial(SilentHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        mirrors = [f"http://127.0.0.1:{server.server_port}/"]
        monkeypatch.setattr(datasets.MNIST, "mirrors", mirrors)
        monkeypatch.setattr(datasets.MNIST, "resources", resources)
        module = load("mnist", f"data.root={tmp_path / 'data'}", "data.val_size=10")
        server.shutdown()
    assert sizes(module) == [50, 10, 20]
    assert (tmp_path / "data" / "MNIST" / "raw" / "train-images-idx3-ubyte").is_file()
    assert capfd.readouterr().err == ""


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_failing_download_is_one_line_and_leaves_nothing(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    with pytest.raises(UserError) as caught:
        load(name, f"data.root={root}")
    line = str(caught.value)
    assert "\n" not in line
    assert f"data.root={root}" in line
    assert "data=digits" in line
    assert not root.exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("offline")
def test_unknown_torchvision_set_is_named() -> None:
    with pytest.raises(UserError, match=r"data\.name=MNITS"):
        build("mnist", "data.name=MNITS")
