"""Every data set, from files of its own format to the batch that a network gets."""

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
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning import LightningModule, Trainer
from PIL import Image
from small_data import random_images, write_cifar10, write_images, write_mnist
from torchvision import datasets

from {{ cookiecutter.package_name }}.data.augment import RandomCrop, RandomHorizontalFlip
from {{ cookiecutter.package_name }}.data.digits import digits_file
from {{ cookiecutter.package_name }}.data.files import list_images, read_image
from {{ cookiecutter.package_name }}.data.images import ImageDataModule
from {{ cookiecutter.package_name }}.data.resize import resize_images
from {{ cookiecutter.package_name }}.data.splits import stratified_split
from {{ cookiecutter.package_name }}.engine.run.resolvers import register_resolvers
from {{ cookiecutter.package_name }}.errors import UserError

CONFIGS = Path(__file__).parent.parent / "configs"
SETS = sorted(path.stem for path in (CONFIGS / "data").glob("*.yaml"))


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


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten images each of cats and dogs."""
    write_images(tmp_path / "cat", 10)
    write_images(tmp_path / "dog", 10, "{}.JPEG")
    return tmp_path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send every download to a port where nobody listens."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")


# What all data sets promise.


@pytest.mark.parametrize("name", SETS)
def test_every_data_set_delivers_batches(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = []
    if name in ("mnist", "fashion_mnist"):
        write_mnist(tmp_path / datasets_name(name) / "raw")
        options = ["data.val_size=10"]
    elif name == "cifar10":
        write_cifar10(tmp_path, monkeypatch)
        options = ["data.val_size=10"]
    elif name == "image_folder":
        write_images(tmp_path / "cat", 20)
        write_images(tmp_path / "dog", 20)
    module = load(name, f"data.root={tmp_path}", "data.batch_size=8", *options)
    channels = 3 if name in ("cifar10", "image_folder") else 1
    assert len(module.class_names) == module.num_classes
    loaders = (module.train_dataloader(), module.val_dataloader(), module.test_dataloader())
    for loader in loaders:
        images, labels = next(iter(loader))
        count = min(8, len(loader.dataset))
        assert images.shape == (count, channels, 32, 32)
        assert images.dtype == torch.uint8
        assert images.float().std() > 1
        assert labels.shape == (count,)
        assert labels.dtype == torch.int64
        assert 0 <= labels.min() <= labels.max() < module.num_classes
        inputs, targets = module.on_after_batch_transfer((images, labels), 0)
        assert inputs.dtype == torch.float32
        torch.testing.assert_close(
            inputs * module._std + module._mean, images / 255, atol=1e-5, rtol=0
        )
        assert targets is labels


def datasets_name(name: str) -> str:
    return {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name]


@pytest.mark.parametrize(
    "override",
    [
        "data.batch_size=0",
        "data.image_size=0",
        "data.resize=crop",
        "data.mean=[0.1,0.2]",
        "data.std=[0]",
    ],
)
def test_illegal_values_are_named(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(UserError, match=key):
        build("digits", override)


def test_wrong_channels_are_named() -> None:
    with pytest.raises(UserError, match=r"data\.channels=3.*use data\.channels=1"):
        load("digits", "data.channels=3")


def test_a_batch_may_be_larger_than_the_training_set() -> None:
    module = load("synthetic", "data.num_samples=20", "data.batch_size=1000")
    assert [len(labels) for _, labels in module.train_dataloader()] == [20]


class Recorder(LightningModule):
    """Keeps the batches that reach a task."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.train_inputs: torch.Tensor | None = None
        self.val_inputs: torch.Tensor | None = None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.train_inputs = batch[0]
        return self.weight * batch[0].mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_inputs = batch[0]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: ImageDataModule, folder: Path, precision: str) -> Recorder:
    task = Recorder()
    trainer = Trainer(
        accelerator="cpu",
        precision=precision,
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(task, datamodule=module)
    return task


def test_only_training_batches_are_augmented(tmp_path: Path) -> None:
    crop = "+data.augment.crop={_target_:torchvision.transforms.v2.RandomCrop,size:16}"
    module = load("digits", crop, "data.batch_size=8")
    task = fit(module, tmp_path, "32-true")
    assert task.train_inputs is not None
    assert task.val_inputs is not None
    assert task.train_inputs.shape == (8, 1, 16, 16)
    assert task.val_inputs.shape[1:] == (1, 32, 32)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16)]
)
def test_batches_have_the_precision_of_the_run(
    tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    task = fit(load("synthetic"), tmp_path, precision)
    assert task.train_inputs is not None
    assert task.train_inputs.dtype == dtype


# The parts.


def test_split_keeps_the_proportions_of_the_classes() -> None:
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    parts = stratified_split(labels, (100, 200), seed=0)
    assert [labels[part].bincount().tolist() for part in parts] == [
        [420, 210, 70],
        [60, 30, 10],
        [120, 60, 20],
    ]
    assert torch.cat(parts).sort().values.tolist() == list(range(1000))
    assert not torch.equal(parts[1], stratified_split(labels, (100, 200), seed=1)[1])
    with pytest.raises(UserError, match="1000 samples"):
        stratified_split(labels, (500, 500), seed=0)


def test_pad_centres_and_stretch_fills() -> None:
    images = torch.full((1, 1, 28, 28), 200, dtype=torch.uint8)
    padded = resize_images(images, 32, "pad")
    assert torch.equal(padded[..., 2:-2, 2:-2], images)
    assert padded.sum() == images.sum()
    assert torch.equal(resize_images(images, 32, "stretch"), torch.full_like(padded, 200))
    wide = torch.full((1, 3, 20, 80), 200, dtype=torch.uint8)
    shrunk = resize_images(wide, 40, "pad")
    assert torch.equal(shrunk[..., 15:25, :], torch.full((1, 3, 10, 40), 200, dtype=torch.uint8))
    assert shrunk[..., :15, :].sum() == shrunk[..., 25:, :].sum() == 0


def test_crop_and_flip_draw_for_each_image() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 3, 6, 8) + 0.1
    flipped = RandomHorizontalFlip(0.5)(image.expand(64, -1, -1, -1))
    mirrored = [torch.equal(one, image[0].flip(-1)) for one in flipped]
    assert all(m or torch.equal(one, image[0]) for m, one in zip(mirrored, flipped, strict=True))
    assert 16 < sum(mirrored) < 48
    padded = torch.nn.functional.pad(image[0], (2, 2, 2, 2))
    pieces = [padded[:, y : y + 6, x : x + 8] for y in range(5) for x in range(5)]
    seen = set()
    for one in RandomCrop(2)(image.expand(256, -1, -1, -1)):
        seen.update(number for number, piece in enumerate(pieces) if torch.equal(one, piece))
    assert len(seen) == 25


# The sets.


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


# One's own images.


@pytest.mark.parametrize("in_memory", [True, False])
def test_image_folder_keeps_names_and_pixels(photos: Path, in_memory: bool) -> None:
    options = (f"data.root={photos}", f"data.in_memory={in_memory}", "data.test_fraction=0.2")
    module = load("image_folder", *options)
    assert module.class_names == ["cat", "dog"]
    assert sizes(module) == [14, 2, 4]
    images, labels = next(iter(module.test_dataloader()))
    assert labels.tolist() == [0, 0, 1, 1]
    expected = read_image(photos / "cat" / "0.png", 3, 32, "stretch")
    assert torch.equal(images[0], expected)


def test_files_to_predict_are_read_as_those_of_training(photos: Path) -> None:
    module = load("image_folder", f"data.root={photos}", "data.resize=pad")
    inputs = module.read_images(module.find_images(photos))
    dataset = (module.datasets or ())[0]
    number = module.find_images(photos).index(dataset.files[0])
    assert inputs.shape == (20, 3, 32, 32)
    assert torch.equal(inputs[number], module.normalize(dataset[0][0]))


def test_image_folder_with_parts(photos: Path) -> None:
    root = photos / "parts"
    write_images(root / "train" / "cat", 10)
    write_images(root / "train" / "dog", 10)
    assert sizes(load("image_folder", f"data.root={root}")) == [18, 2, 2]
    write_images(root / "val" / "cat", 3)
    write_images(root / "val" / "dog", 3)
    assert sizes(load("image_folder", f"data.root={root}")) == [20, 6, 6]
    write_images(root / "test" / "cat", 2)
    write_images(root / "test" / "horse", 2)
    with pytest.raises(UserError, match=r"cat, horse.*cat, dog"):
        load("image_folder", f"data.root={root}")


def test_image_folder_without_images_is_named(photos: Path) -> None:
    (photos / "horse").mkdir()
    with pytest.raises(UserError, match="horse"):
        load("image_folder", f"data.root={photos}")


def test_image_folder_with_too_few_images(tmp_path: Path) -> None:
    write_images(tmp_path / "cat", 1)
    write_images(tmp_path / "dog", 1)
    with pytest.raises(UserError, match="2 samples"):
        load("image_folder", f"data.root={tmp_path}")


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_file_that_is_no_image_is_named_before_training(photos: Path, in_memory: bool) -> None:
    broken = photos / "dog" / "broken.png"
    broken.write_text("not a picture")
    with pytest.raises(UserError, match=r"broken\.png"):
        load("image_folder", f"data.root={photos}", f"data.in_memory={in_memory}")


def test_damage_that_shows_in_a_worker_is_one_line(photos: Path) -> None:
    # JPEG files that lack their end: the headers are whole.
    for file in (photos / "dog").iterdir():
        content = file.read_bytes()
        file.write_bytes(content[:-200])
    module = load("image_folder", f"data.root={photos}", "data.num_workers=1")
    with pytest.raises(UserError) as caught:
        list(module.train_dataloader())
    line = str(caught.value)
    assert line.startswith(str(photos / "dog"))
    assert "\n" not in line


def test_read_image_whatever_its_format(tmp_path: Path) -> None:
    deep = np.full((8, 8), 0x8000, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png", 1, 8, "pad").unique().tolist() == [0x80]
    Image.fromarray(random_images(8, 8, 4)).save(tmp_path / "clear.png")
    assert read_image(tmp_path / "clear.png", 3, 16, "stretch").shape == (3, 16, 16)
    assert read_image(tmp_path / "clear.png", 4, 16, "pad").shape == (4, 16, 16)
    turned = Image.Exif()
    turned[0x0112] = 6  # Orientation: turned by a quarter
    Image.fromarray(random_images(4, 8)).save(tmp_path / "turned.png", exif=turned)
    tall = read_image(tmp_path / "turned.png", 1, 8, "pad")
    assert tall[..., :2].sum() == tall[..., 6:].sum() == 0
    assert tall[..., 2:6].sum() > 0


def test_list_images(photos: Path) -> None:
    (photos / "cat" / "notes.txt").touch()
    (photos / "cat" / ".hidden.png").touch()
    found = list_images(photos)
    assert len(found) == 20
    assert found == sorted(found)
    assert list_images(found[0]) == [found[0]]
    with pytest.raises(UserError, match="nowhere"):
        list_images(photos / "nowhere")
