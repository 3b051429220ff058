"""Finds, reads and checks image files."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ..errors import UserError

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
RESIZE_MODES = ("pad", "stretch")
PILLOW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class UnreadableImageError(UserError):
    """A file that is not an image, or a damaged one."""

    def __init__(self, message: str) -> None:
        # What a DataLoader worker raises, PyTorch raises again in the training process with the
        # whole formatted traceback as the message. The wanted line is the last one.
        super().__init__(message.rsplit(f"{type(self).__name__}: ", 1)[-1].strip())


def list_images(path: str | Path) -> list[Path]:
    """List the images in a folder and in all folders below it, sorted; or the one file given.

    Raises:
        UserError: If there is no such file or folder.
    """
    path = Path(path).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(
            f"{path}: no such file or folder; name an image, or a folder with images in it"
        )
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES
        and not file.name.startswith(".")
        and file.is_file()
    )


def read_image(path: str | Path, channels: int, image_size: int, resize: str) -> Tensor:
    """Read an image file as uint8 (channels, image_size, image_size).

    Args:
        path: The file.
        channels: 1 for grey, 3 for colour, 4 for colour and transparency, whatever the file has.
        image_size: Height and width of the result.
        resize: `pad` or `stretch`, see `resize_images`.

    Raises:
        UserError: If the file cannot be read as an image.
    """
    try:
        with Image.open(path) as image:
            # Cameras store their orientation in the metadata.
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):
                # Pillow would clip 16-bit grey values at 255.
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            pixels = np.array(upright.convert(PILLOW_MODES[channels]))
    except Exception as error:  # Pillow's decoders raise almost anything on a damaged file.
        raise _unreadable(path, error) from error
    images = torch.from_numpy(pixels).view(1, *pixels.shape[:2], channels).permute(0, 3, 1, 2)
    return resize_images(images, image_size, resize)[0].contiguous()


def check_image(path: str | Path) -> None:
    """Check a file without decoding its pixels.

    Raises:
        UserError: If it is not an image, or its damage is visible without decoding.
    """
    try:
        with Image.open(path) as image:
            image.verify()
    except Exception as error:  # See read_image.
        raise _unreadable(path, error) from error


def _unreadable(path: str | Path, error: Exception) -> UnreadableImageError:
    reason = (
        "not an image"
        if isinstance(error, UnidentifiedImageError)
        else " ".join(str(error).split())
    )
    return UnreadableImageError(
        f"{path}: cannot be read as an image ({reason}); replace or remove it"
    )


def resize_images(images: Tensor, size: int, mode: str) -> Tensor:
    """Bring images to `size` x `size` pixels.

    Args:
        images: (N, C, H, W), uint8.
        size: Height and width of the result.
        mode: `pad` centres the image in a black square (as LeNet-5's paper does with 28 -> 32) and
            shrinks it first, in proportion, if it is too large. `stretch` scales height and width
            to the square. Scaling is bilinear, with antialiasing.
    """
    if mode == "stretch":
        return scale_images(images, size, size)
    height, width = images.shape[-2:]
    if max(height, width) > size:
        shrink = size / max(height, width)
        height, width = max(1, round(height * shrink)), max(1, round(width * shrink))
        images = scale_images(images, height, width)
    top, left = (size - height) // 2, (size - width) // 2
    return F.pad(images, (left, size - width - left, top, size - height - top))


def scale_images(images: Tensor, height: int, width: int) -> Tensor:
    """Scale uint8 images (N, C, H, W) to `height` x `width`."""
    if images.shape[-2:] == (height, width):
        return images
    return F.interpolate(images, (height, width), mode="bilinear", antialias=True)
