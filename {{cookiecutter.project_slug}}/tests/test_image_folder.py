"""Images of one's own: folders, files of any format, and damage that is found in time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from onecurve.data.files import list_images, read_image
from onecurve.errors import UserError
from PIL import Image
from small_data import load, random_images, sizes, write_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten images each of cats and dogs."""
    write_images(tmp_path / "cat", 10)
    write_images(tmp_path / "dog", 10, "{}.JPEG")
    return tmp_path


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
