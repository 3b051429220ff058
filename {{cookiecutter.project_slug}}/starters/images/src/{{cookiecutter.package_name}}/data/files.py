"""Finds and reads image files."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from onecurve.errors import UserError
from PIL import Image, ImageOps
from torch import Tensor

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def list_images(path: str | Path) -> list[Path]:
    """The images in a folder and in all folders below it, sorted; or the one file given."""
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; name an image, or a folder of images")
    files = sorted(path.rglob("[!.]*")) if path.is_dir() else [path]
    return [file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()]


def read_image(path: Path, channels: int, size: int, resize: str) -> Tensor:
    """An image file as uint8 (channels, size, size), upright, whatever its colours."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):  # Pillow would clip its values at 255
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            pixels = np.array(upright.convert(MODES[channels]))
    except Exception as error:  # a damaged file can raise almost anything
        raise UserError(f"{path}: cannot be read as an image; replace or remove it") from error
    images = torch.from_numpy(pixels).view(1, *pixels.shape[:2], channels).permute(0, 3, 1, 2)
    return resized(images, size, resize)[0].contiguous()


def resized(images: Tensor, size: int, resize: str) -> Tensor:
    """Images (N, C, H, W), uint8, as (N, C, size, size).

    `pad` centres them in a black square, as LeNet-5's paper does with 28 -> 32, and shrinks them
    in proportion if they are too large; `stretch` scales height and width to the square.
    """
    height, width = images.shape[-2:]
    shrink = min(1, size / max(height, width))
    fits = (size, size) if resize == "stretch" else (round(height * shrink), round(width * shrink))
    if fits != (height, width):
        images = F.interpolate(
            images, [max(1, side) for side in fits], mode="bilinear", antialias=True
        )
    top, left = (size - images.shape[-2]) // 2, (size - images.shape[-1]) // 2
    bottom, right = size - images.shape[-2] - top, size - images.shape[-1] - left
    return F.pad(images, (left, right, top, bottom))
