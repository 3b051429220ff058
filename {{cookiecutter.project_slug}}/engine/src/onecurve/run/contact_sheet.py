"""A picture of pictures: each image of a prediction with its class and probability."""

import math
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

MOST_IMAGES = 100
COLUMNS = 8


def draw(rows: list[tuple[Path, str, float]], path: Path) -> Path:
    """Draw the first hundred images, the least certain ones first.

    Args:
        rows: File, class and probability of each image.
        path: The PNG file to write.

    Returns:
        `path`.
    """
    shown = sorted(rows, key=lambda row: row[2])[:MOST_IMAGES]
    columns = min(COLUMNS, len(shown))
    lines = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(1.4 * columns, 1.6 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    for axes in figure.subplots(lines, columns, squeeze=False).flat:
        axes.axis("off")
    for axes, (file, label, share) in zip(figure.axes, shown, strict=False):
        with Image.open(file) as image:
            axes.imshow(image.convert("RGB"))
        axes.set_title(f"{label} {share:.0%}", fontsize=8)
    figure.savefig(path, dpi=100)
    return path
