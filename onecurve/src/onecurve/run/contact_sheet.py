"""A picture of pictures: each image of a prediction with its class and probability."""

from pathlib import Path

from PIL import Image

from ..figures import image_grid

MOST_IMAGES = 100


def draw(rows: list[tuple[Path, str, float]], path: Path) -> Path:
    """Draw the first hundred images, the least certain ones first.

    Args:
        rows: File, class and probability of each image.
        path: The PNG file to write.

    Returns:
        `path`.
    """
    least_certain = sorted(rows, key=lambda row: row[2])[:MOST_IMAGES]
    images = [Image.open(file).convert("RGB") for file, _, _ in least_certain]
    titles = [f"{label} {probability:.0%}" for _, label, probability in least_certain]
    image_grid(images, titles).savefig(path, dpi=100)
    return path
