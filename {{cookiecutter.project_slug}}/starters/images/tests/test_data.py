"""The data sets of this project: their contents, and the errors for unreadable files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import composed, shipped
from hydra.utils import instantiate
from onecurve.data.files import read_image
from onecurve.errors import UserError
from small_data import write_images


def load(name: str, *overrides: str) -> Any:
    module: Any = instantiate(composed(f"data={name}", *overrides).data)
    module.prepare_data()
    module.setup("fit")
    return module


def sizes(module: Any) -> list[int]:
    return [len(dataset) for dataset in module.datasets]


@shipped("data/synthetic")
def test_synthetic_images_can_be_learned_and_repeat() -> None:
    shape = ("data.channels=2", "data.image_size=9", "data.num_classes=4")
    train, _, test = load("synthetic", *shape).datasets
    assert train.images.shape == (2000, 2, 9, 9)
    means = torch.stack([train.images[train.labels == n].float().mean(0) for n in range(4)])
    distances = torch.cdist(test.images.float().flatten(1), means.flatten(1))
    assert (distances.argmin(1) == test.labels).float().mean() > 0.95
    again, other = (load("synthetic", *shape, f"data.seed={seed}").datasets for seed in (0, 1))
    assert torch.equal(train.images, again[0].images) != torch.equal(train.images, other[0].images)


@shipped("data/image_folder")
@pytest.mark.parametrize("in_memory", [True, False])
def test_image_folder_keeps_names_and_pixels(tmp_path: Path, in_memory: bool) -> None:
    write_images(tmp_path / "cat", 10)
    write_images(tmp_path / "dog", 10, "{}.JPEG")
    options = (f"data.root={tmp_path}", f"data.in_memory={in_memory}", "data.test_fraction=0.2")
    module = load("image_folder", *options)
    assert module.class_names == ["cat", "dog"]
    assert sizes(module) == [14, 2, 4]
    images, labels = next(iter(module.test_dataloader()))
    assert labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(images[0], read_image(tmp_path / "cat/0.png", 3, 32, "stretch"))
    # Files to predict are read as those of training.
    inputs = module.read_images([tmp_path / "cat/0.png"])
    assert torch.equal(inputs[0], module.normalize(images[0]))


@shipped("data/image_folder")
def test_image_folder_with_parts(tmp_path: Path) -> None:
    def load_with(part: str, count: int, *classes: str) -> list[int]:
        for name in classes:
            write_images(tmp_path / part / name, count)
        return sizes(load("image_folder", f"data.root={tmp_path}"))

    assert load_with("train", 10, "cat", "dog") == [18, 2, 2]
    assert load_with("val", 3, "cat", "dog") == [20, 6, 6]
    with pytest.raises(UserError, match=r"cat, horse.*cat, dog"):
        load_with("test", 2, "cat", "horse")
