"""What every data set promises, from the files on disk to the batch that a network gets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning import LightningModule
from PIL import Image
from several_fits import quiet_trainer

from onecurve.app.command.resolvers import register_resolvers
from onecurve.data.augment import RandomCrop, RandomHorizontalFlip
from onecurve.data.files import list_images, read_image, resize_images
from onecurve.data.images import ImageDataModule
from onecurve.data.splits import stratified_split
from onecurve.errors import UserError


def build(*overrides: str) -> ImageDataModule:
    register_resolvers()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("train", overrides=list(overrides))
    try:
        module: ImageDataModule = instantiate(config.data)
    except InstantiationException as error:
        # Hydra wraps what a class raises, and the library unwraps it too.
        raise (error.__cause__ or error) from None
    return module


def load(*overrides: str) -> ImageDataModule:
    module = build(*overrides)
    module.prepare_data()
    module.setup("fit")
    return module


def test_a_data_set_delivers_batches() -> None:
    module = load("data.batch_size=8")
    assert len(module.class_names) == module.num_classes
    loaders = (module.train_dataloader(), module.val_dataloader(), module.test_dataloader())
    for loader in loaders:
        images, labels = next(iter(loader))
        count = min(8, len(loader.dataset))
        assert images.shape == (count, 1, 32, 32)
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
    key = override.partition("=")[0].removeprefix("data.")  # this is no command
    with pytest.raises(UserError, match=key):
        build(override)


def test_wrong_channels_are_named() -> None:
    with pytest.raises(UserError, match=r"^channels=3.*use channels=1"):
        load("data.channels=3")


def test_a_batch_may_be_larger_than_the_training_set() -> None:
    module = load("data.val_size=900", "data.test_size=877", "data.batch_size=1000")
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
    trainer = quiet_trainer(precision=precision, max_steps=1, default_root_dir=folder)
    trainer.fit(task, datamodule=module)
    return task


def test_only_training_batches_are_augmented(tmp_path: Path) -> None:
    crop = "+data.augment.crop={_target_:torchvision.transforms.v2.RandomCrop,size:16}"
    module = load(crop, "+data.augment.none=null", "data.batch_size=8")
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
    task = fit(load(), tmp_path, precision)
    assert task.train_inputs is not None
    assert task.train_inputs.dtype == dtype


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


def random_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


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


def test_list_images(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number, ending in enumerate(("png", "JPEG")):
            file = tmp_path / name / f"{number}.{ending}"
            Image.fromarray(random_images(8, 8, 3)).save(file)
    (tmp_path / "cat" / "notes.txt").touch()
    (tmp_path / "cat" / ".hidden.png").touch()
    found = list_images(tmp_path)
    assert len(found) == 4
    assert found == sorted(found)
    assert list_images(found[0]) == [found[0]]
    with pytest.raises(UserError, match="nowhere"):
        list_images(tmp_path / "nowhere")
