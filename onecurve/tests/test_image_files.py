"""Image files of any format, and those that are none."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onecurve.data.files import list_images, read_image
from onecurve.errors import UserError


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
