"""Matplotlib figures without a display, and grids of images.

Matplotlib is only imported when something is drawn.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 8


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches; an inch has 100 pixels in a file with ``dpi=100``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def image_grid(
    images: Sequence[Any], titles: Sequence[str], colors: Sequence[str] | None = None
) -> "Figure":
    """Images side by side, each with a line above it, black unless there are colours.

    They are arrays (H, W, 3) of floats in 0..1 or of bytes, or PIL's images; of any sizes.
    """
    columns = min(COLUMNS, len(images))
    rows = math.ceil(len(images) / columns)
    figure = new_figure(1.5 * columns, 1.7 * rows)
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.axis("off")
    colors = colors or ["black"] * len(images)
    # The last row may be incomplete.
    for axes, image, title, color in zip(figure.axes, images, titles, colors, strict=False):
        axes.imshow(image)
        axes.set_title(title, fontsize=8, color=color)
    return figure
