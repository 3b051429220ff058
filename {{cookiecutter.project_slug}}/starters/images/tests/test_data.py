"""Images: what the data sets hold, and how they become batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import composed
from hydra.utils import instantiate
from onecurve.errors import UserError
from PIL import Image

from {{ cookiecutter.package_name }}.data.augment import RandomCrop, RandomHorizontalFlip
from {{ cookiecutter.package_name }}.data.files import read_image, resized
from {{ cookiecutter.package_name }}.data.images import stratified_split


def load(name: str, *overrides: str) -> Any:
    module: Any = instantiate(composed(f"data={name}", *overrides).data)
    module.prepare_data()
    module.setup("fit")
    return module


def sizes(module: Any) -> list[int]:
    return [len(dataset) for dataset in module.datasets]


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def write_images(folder: Path, count: int, name: str = "{}.png") -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(pixels(20, 30, 3)).save(folder / name.format(number))


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    first = load("digits", "data.image_size=8")
    other = load("digits", "data.image_size=8", "data.split_seed=1")
    assert sizes(first) == [1297, 200, 300]
    images = torch.cat([part.images for part in first.datasets]).flatten(1)
    expected = torch.from_numpy(load_digits().data).mul(255 / 16).round().to(torch.uint8)
    assert sorted(images.tolist()) == sorted(expected.tolist())
    assert not torch.equal(first.datasets[2].images, other.datasets[2].images)


def test_synthetic_images_can_be_learned_and_repeat() -> None:
    shape = ("data.channels=2", "data.image_size=9", "data.num_classes=4")
    train, _, test = load("synthetic", *shape).datasets
    assert train.images.shape == (2000, 2, 9, 9)
    means = torch.stack([train.images[train.labels == n].float().mean(0) for n in range(4)])
    distances = torch.cdist(test.images.float().flatten(1), means.flatten(1))
    assert (distances.argmin(1) == test.labels).float().mean() > 0.95
    assert torch.equal(train.images, load("synthetic", *shape).datasets[0].images)


def test_a_batch_becomes_the_input_and_back() -> None:
    module = load("digits")
    images, labels = next(iter(module.val_dataloader()))
    inputs, targets = module.on_after_batch_transfer((images, labels), 0)
    assert [targets is labels, module.on_after_batch_transfer(inputs, 0) is inputs] == [True, True]
    torch.testing.assert_close(inputs, (images / 255 - module.mean) / module.std)
    torch.testing.assert_close(module.denormalize(inputs), images / 255, atol=1e-6, rtol=0)
    with pytest.raises(UserError, match=r"^channels=3.*use channels=1"):
        load("digits", "data.channels=3")


@pytest.mark.parametrize("in_memory", [True, False])
def test_image_folder_keeps_names_and_pixels(tmp_path: Path, in_memory: bool) -> None:
    write_images(tmp_path / "cat", 10)
    write_images(tmp_path / "dog", 10, "{}.JPEG")
    options = (f"data.root={tmp_path}", f"data.in_memory={in_memory}", "data.test_fraction=0.2")
    module = load("image_folder", *options)
    assert (module.class_names, sizes(module)) == (["cat", "dog"], [14, 2, 4])
    images, labels = next(iter(module.test_dataloader()))
    assert labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(images[0], read_image(tmp_path / "cat/0.png", 3, 32, "stretch"))


def test_files_are_predicted_as_they_are_evaluated(tmp_path: Path) -> None:
    write_images(tmp_path / "a", 3)
    module = instantiate(composed(f"+data.images={tmp_path}", "data.batch_size=2").data)
    module.setup("predict")  # which loads no data set
    first, second = module.predict_dataloader()
    assert (len(first[0]), len(second[0]), module.datasets) == (2, 1, None)
    assert torch.equal(first[0][1], read_image(module.predicted_files[1], 1, 32, "stretch"))
    (tmp_path / "a/2.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"a/2\.png: cannot be read as an image"):
        list(module.predict_dataloader())


def test_image_folder_with_parts(tmp_path: Path) -> None:
    def load_with(part: str, count: int, *classes: str) -> list[int]:
        for name in classes:
            write_images(tmp_path / part / name, count)
        return sizes(load("image_folder", f"data.root={tmp_path}"))

    assert load_with("train", 10, "cat", "dog") == [18, 2, 2]
    assert load_with("val", 3, "cat", "dog") == [20, 6, 6]
    with pytest.raises(UserError, match=r"cat, horse.*cat, dog"):
        load_with("test", 2, "cat", "horse")


def test_images_are_read_whatever_their_format(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 0x8000, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png", 1, 8, "pad").unique().tolist() == [0x80]
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter
    Image.fromarray(pixels(4, 8)).save(tmp_path / "turned.png", exif=turned)
    tall = read_image(tmp_path / "turned.png", 1, 8, "pad")
    assert tall[..., :2].sum() == tall[..., 6:].sum() == 0 < tall[..., 2:6].sum()
    images = torch.full((1, 3, 20, 80), 200, dtype=torch.uint8)
    assert torch.equal(resized(images, 32, "stretch"), torch.full((1, 3, 32, 32), 200).byte())
    assert torch.equal(resized(images, 40, "pad")[..., 15:25, :], images[..., :10, :40])


def test_crop_and_flip_draw_for_each_image() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 3, 6, 8) + 0.1
    flipped = RandomHorizontalFlip(0.5)(image.expand(64, -1, -1, -1))
    assert 16 < sum(torch.equal(one, image[0].flip(-1)) for one in flipped) < 48
    padded = torch.nn.functional.pad(image[0], (2, 2, 2, 2))
    pieces = [padded[:, y : y + 6, x : x + 8] for y in range(5) for x in range(5)]
    crops = RandomCrop(2)(image.expand(256, -1, -1, -1))
    assert len({n for one in crops for n, piece in enumerate(pieces) if one.equal(piece)}) == 25


def test_a_split_keeps_the_proportions_of_the_classes() -> None:
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    parts = stratified_split(labels, (100, 200), seed=0)
    counts = [labels[part].bincount().tolist() for part in parts]
    assert counts == [[420, 210, 70], [60, 30, 10], [120, 60, 20]]
    assert torch.cat(parts).sort().values.tolist() == list(range(1000))
