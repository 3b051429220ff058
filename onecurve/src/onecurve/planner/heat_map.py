"""A heat map of meshes: how long a step takes, by how layers are spread and cut within."""

from pathlib import Path

from ..errors import UserError
from ..figures import new_figure
from ..strategies.mesh.sizes import Sizes
from .meshes import Meshes

NONE = "#eeeeee"


def draw(meshes: Meshes, path: Path, title: str) -> Path:
    """Draw a square for each way to spread and cut layers.

    Across: context x tensor; down: pipeline. In a square the step in milliseconds with the best
    replicate x shard of the ranks that are left, and these; grey is what does not fit.

    Args:
        meshes: All of them.
        path: The PNG file to write.
        title: What stands above.

    Returns:
        `path`.

    Raises:
        UserError: If it cannot be written.
    """
    import numpy as np

    every = [each.sizes for each in meshes.fitting] + list(meshes.others)
    # Only what one of those that fit has, or everything would be grey.
    shown = [each.sizes for each in meshes.fitting] or every
    rows = sorted({sizes.pipeline for sizes in shown})
    columns = sorted(
        {_within(sizes) for sizes in shown}, key=lambda each: (each[0] * each[1], each)
    )
    grid = np.full((len(rows), len(columns)), np.nan)
    best: dict[tuple[int, int], Sizes] = {}
    for each in reversed(meshes.fitting):
        at = rows.index(each.sizes.pipeline), columns.index(_within(each.sizes))
        grid[at] = each.seconds * 1e3
        best[at] = each.sizes
    figure = new_figure(max(5.0, 2.2 + 0.7 * len(columns)), max(3.2, 1.8 + 0.5 * len(rows)))
    axes = figure.subplots()
    axes.set_facecolor(NONE)
    image = axes.imshow(np.log10(grid), cmap="viridis_r", aspect="auto")
    for (row, column), sizes in best.items():
        words = f"{_short(grid[row, column])}\n{sizes.replicate} x {sizes.shard}"
        axes.text(column, row, words, ha="center", va="center", size=7, bbox=LABEL)
    axes.set_xticks(range(len(columns)), [f"{a} x {b}" for a, b in columns], size=8)
    axes.set_yticks(range(len(rows)), [str(row) for row in rows], size=8)
    axes.set(xlabel="context x tensor", ylabel="pipeline")
    axes.set_title(f"{title}: step in ms, replicate x shard", loc="left", size=10)
    if best:
        bar = figure.colorbar(image, ax=axes, label="ms")
        ticks = [float(tick) for tick in bar.get_ticks()]
        bar.set_ticks(ticks, labels=[_short(10**tick) for tick in ticks])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)
    except OSError as error:
        raise UserError(
            f"plan.picture={path}: {error.strerror}; name a place that can be written to"
        ) from error
    return path


LABEL = {"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 1.0}


def _within(sizes: Sizes) -> tuple[int, int]:
    return sizes.context, sizes.tensor


def _short(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
