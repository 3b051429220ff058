"""sweep.png: the sweep in one picture for a paper."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from . import colors
from .contents import Contents
from .curves import Curve, Numbers
from .groups import SEED, Configuration, Spread, configurations
from .jobs import LOSS
from .overrides import as_number, logarithmic, shorter

MOST_LEGEND = 12
MOST_ROWS = 20
MARKS: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 2, "elinewidth": 1}


def write(contents: Contents, path: Path) -> None:
    """Write the file."""
    groups = configurations(contents)
    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=300)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    color = _colors(groups)
    _draw_curves(left, contents, groups, color)
    named = _draw_values(right, contents, groups, color)
    # Where the right side names each colour beside its dot, nobody needs a legend.
    if not named and 1 < len(groups) <= MOST_LEGEND and left.lines:
        handles = left.get_legend_handles_labels()[0][::-1]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False
        )
    with warnings.catch_warnings():
        # A letter that the font does not have is drawn as a box; that need not be said each time.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path)


def _colors(groups: Sequence[Configuration]) -> list[str]:
    if len(groups) <= len(colors.PALETTE):
        return list(colors.PALETTE)
    ranked = [group for group in groups if group.finished]
    last = max(len(ranked) - 1, 1)
    return [
        colors.blend(1 - index / last) if group.finished else colors.NO_VALUE
        for index, group in enumerate(groups)
    ]


def _draw_curves(
    axes: Axes, contents: Contents, groups: Sequence[Configuration], color: Sequence[str]
) -> None:
    metric = _with_a_course(contents)
    if metric is None:
        _say(axes, "no curve was logged")
        return
    for index in reversed(range(len(groups))):
        curves = [job.curves[metric] for job in groups[index].jobs if metric in job.curves]
        if not curves:
            continue
        steps, mean, deviation = _together(curves)
        line = axes.plot(steps, mean, color=color[index], linewidth=1.2)[0]
        line.set_label(_plain(shorter(groups[index].label, 40)))
        if deviation is not None:
            band = (mean - deviation, mean + deviation)
            axes.fill_between(steps, *band, color=color[index], alpha=0.2, linewidth=0)
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel(_plain(metric), fontsize=9)


def _with_a_course(contents: Contents) -> str | None:
    """The first objective if jobs logged it more than once, else the training loss."""
    names = [each.name for each in contents.objectives[:1]] + [LOSS]
    for name in names:
        if any(len(job.curves.get(name, ())) > 1 for job in contents.jobs):
            return name
    return None


def _together(curves: Sequence[Curve]) -> tuple[Numbers, Numbers, Numbers | None]:
    """Steps, mean and standard deviation of some curves; no deviation of one."""
    steps = curves[0].steps
    for curve in curves[1:]:
        steps = np.intersect1d(steps, curve.steps)
    if len(curves) == 1 or not len(steps):
        only = curves[0].thinned()
        return only.steps, only.values, None
    steps = Curve(steps, steps, steps).thinned().steps
    values = np.stack([curve.values[np.isin(curve.steps, steps)] for curve in curves])
    return steps, values.mean(axis=0), values.std(axis=0, ddof=1)


def _draw_values(
    axes: Axes, contents: Contents, groups: Sequence[Configuration], color: Sequence[str]
) -> bool:
    """Draw what the configurations came to; says whether each is named there."""
    found = [
        (group, spread, color[index])
        for index, group in enumerate(groups)
        if contents.objectives and (spread := group.objective(0)) is not None
    ]
    if not found:
        _say(axes, "no job finished with a value")
        return False
    key, numbers = _only_number(contents, [group for group, _, _ in found])
    if not numbers:
        _draw_rows(axes, found)
        axes.set_xlabel(_plain(contents.objectives[0].name), fontsize=9)
        if len(groups) > MOST_ROWS:
            axes.set_title(f"the {len(axes.get_yticks())} best of {len(groups)}", fontsize=9)
        return True
    for number, (_, spread, own) in zip(numbers, found, strict=True):
        axes.errorbar(number, spread.mean, yerr=spread.deviation, color=own, **MARKS)
    if logarithmic(numbers):
        axes.set_xscale("log")
    axes.set_xlabel(_plain(key), fontsize=9)
    axes.set_ylabel(_plain(contents.objectives[0].name), fontsize=9)
    return False


def _only_number(contents: Contents, groups: Sequence[Configuration]) -> tuple[str, list[float]]:
    """The key and its values, where a single number varies beside the seed."""
    keys = [key for key in contents.keys if key != SEED]
    if len(keys) != 1:
        return "", []
    numbers = [as_number(group.jobs[0].overrides.get(keys[0], "")) for group in groups]
    there = [number for number in numbers if number is not None]
    return keys[0], there if len(there) == len(numbers) > 2 else []


def _draw_rows(axes: Axes, found: Sequence[tuple[Configuration, Spread, str]]) -> None:
    rows = found[:MOST_ROWS]
    axes.xaxis.set_major_locator(MaxNLocator(4))
    for index, (_, spread, own) in enumerate(rows):
        axes.errorbar(spread.mean, index, xerr=spread.deviation, color=own, **MARKS)
    labels = [_plain(shorter(group.label, 48)) for group, _, _ in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=8 if len(rows) <= 10 else 6)
    # The best on top.
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _say(axes: Axes, words: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=9, transform=axes.transAxes)


def _plain(text: str) -> str:
    # Matplotlib takes what is between dollars for a formula.
    return text.replace("$", r"\$")
