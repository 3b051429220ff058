"""From a checkpoint and a folder of images to a table and a sheet of pictures."""

import csv
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from PIL import Image
from sklearn.datasets import load_digits


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Forty of scikit-learn's digits as PNG files, named by what they show."""
    folder = tmp_path / "images"
    folder.mkdir()
    data = load_digits()
    for number in range(40):
        pixels = (data.images[number] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{data.target[number]}-{number:02}.png")
    return folder


@pytest.mark.parametrize("batch_size", [7, 64])
def test_a_folder_gets_a_row_an_image(
    trained: Cli, cli: Cli, digits: Path, tmp_path: Path, batch_size: int
) -> None:
    run = trained("trainer.max_epochs=10").run
    outcome = cli(
        "predict.py", f"checkpoint={run}/checkpoints/best.ckpt", f"predict.images={digits}",
        "predict.output=out/table.csv", "predict.figure=true", f"predict.batch_size={batch_size}",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    with (tmp_path / "out/table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["file"]) for row in rows] == sorted(digits.iterdir())
    right = sum(Path(row["file"]).name.startswith(row["class"]) for row in rows)
    assert right >= 36
    assert all(0 < float(row["probability"]) <= 1 for row in rows)
    with Image.open(tmp_path / "out/table.png") as sheet:
        assert sheet.width > 500


def test_one_image(trained: Cli, cli: Cli, digits: Path) -> None:
    checkpoint = trained("strategy=single").run / "checkpoints/last.ckpt"
    image = sorted(digits.iterdir())[0]
    outcome = cli("predict.py", f"checkpoint={checkpoint}", f"predict.images={image}")
    assert outcome.status == 0, outcome.err
    assert (outcome.run / "predictions.csv").read_text().count("\n") == 2


def test_wrong_images_get_one_line(trained: Cli, cli: Cli, digits: Path, tmp_path: Path) -> None:
    checkpoint = trained("strategy=single").run / "checkpoints/last.ckpt"
    (tmp_path / "empty").mkdir()
    (digits / "broken.png").write_bytes(b"")
    for images, line in (
        ("nowhere", "predict.images=nowhere: there is no such file"),
        ("empty", "predict.images=empty: no images in this folder"),
        (digits, "broken.png: cannot be read as an image"),
    ):
        outcome = cli("predict.py", f"checkpoint={checkpoint}", f"predict.images={images}")
        assert outcome.status == 2
        assert line in outcome.err
        assert len(outcome.err.splitlines()) == 1
        assert outcome.runs == []
