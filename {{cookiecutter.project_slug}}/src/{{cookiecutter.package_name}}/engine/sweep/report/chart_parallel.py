"""Parallel coordinates: a line for each job, through its overrides to what it reached.

Drawn with ordinary lines. Plotly's own kind needs WebGL, and shows nothing but an excuse in a
browser without it (a remote desktop, a virtual machine).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from . import colors
from .charts import Chart, hover, safe
from .contents import Contents
from .overrides import as_number, by_size, logarithmic, shorter, shown

MOST_TICKS = 12


@dataclass(frozen=True)
class Axis:
    """One vertical axis: where each job crosses it, from 0 to 1, and what is written beside."""

    title: str
    places: list[float | None]
    ticks: list[tuple[float, str]]


def chart(contents: Contents) -> Chart | None:
    """The chart; None if nothing varies."""
    if not contents.keys:
        return None
    jobs = contents.jobs
    axes = [
        _of_overrides(key, [job.overrides.get(key, "") for job in jobs]) for key in contents.keys
    ]
    for index, objective in enumerate(contents.objectives):
        if any(job.values[index] is not None for job in jobs):
            axes.append(_of_numbers(objective.name, [job.values[index] for job in jobs]))
    color = colors.by_rank(contents)
    figure = go.Figure()
    # The best last, so that it lies on top.
    for number, job in reversed(list(enumerate(jobs))):
        best = job.name in contents.best
        figure.add_scatter(
            x=list(range(len(axes))),
            y=[axis.places[number] for axis in axes],
            mode="lines+markers",
            meta=job.name,
            line={"color": color[job.name], "width": 3 if best else 1.2},
            marker={"color": color[job.name], "size": 7 if best else 4},
            hovertemplate=f"{hover(contents, job)}<extra></extra>",
        )
    for place, axis in enumerate(axes):
        _draw(figure, place, axis)
    margin = {"l": 0, "r": 0, "t": 0, "b": 0}
    figure.update_layout(showlegend=False, hovermode="closest", margin=margin)
    figure.update_xaxes(visible=False, range=[-0.35, len(axes) - 0.65], fixedrange=True)
    figure.update_yaxes(visible=False, range=[-0.06, 1.12], fixedrange=True)
    note = "Each line is a job."
    if contents.objectives:
        note += f" From blue to yellow, {contents.objectives[0].name} gets better."
    return Chart("parallel", "Overrides and results", note, figure, least_width=130 * len(axes))


def _of_overrides(key: str, texts: Sequence[str]) -> Axis:
    numbers = [as_number(text) for text in texts]
    if None not in numbers:
        return _of_numbers(key, numbers)
    names = sorted(set(texts), key=by_size, reverse=True)
    last = len(names) - 1
    place = {name: index / last if last else 0.5 for index, name in enumerate(names)}
    every = math.ceil(len(names) / MOST_TICKS)
    ticks = [(place[name], shorter(shown(name), 24)) for name in names[::every]]
    return Axis(key, [place[text] for text in texts], ticks)


def _of_numbers(title: str, numbers: Sequence[float | None]) -> Axis:
    there = sorted({number for number in numbers if number is not None})
    low, high = there[0], there[-1]
    by_ratio = logarithmic(there)

    def place(number: float) -> float:
        if low == high:
            return 0.5
        if by_ratio:
            return math.log(number / low) / math.log(high / low)
        # Halves, so that the difference of two huge numbers is finite.
        return (number / 2 - low / 2) / (high / 2 - low / 2)

    written = there
    if len(there) > 6 and by_ratio:
        written = [low * (high / low) ** (index / 4) for index in range(5)]
    elif len(there) > 6:
        written = [low + (high / 4 - low / 4) * index for index in range(5)]
    return Axis(
        title,
        [None if number is None else place(number) for number in numbers],
        _apart([(place(number), f"{number:.4g}") for number in written]),
    )


def _apart(ticks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Those of the ticks that are not written over the one before; the last always is."""
    kept: list[tuple[float, str]] = []
    for place, text in ticks[:-1]:
        if (not kept or place - kept[-1][0] > 0.05) and ticks[-1][0] - place > 0.05:
            kept.append((place, text))
    return [*kept, ticks[-1]]


def _draw(figure: go.Figure, place: int, axis: Axis) -> None:
    figure.add_shape(
        type="line", x0=place, x1=place, y0=0, y1=1, line={"color": "#888888", "width": 1}
    )
    figure.add_annotation(
        x=place, y=1.04, text=f"<b>{safe(shorter(axis.title))}</b>", yanchor="bottom"
    )
    for height, text in axis.ticks:
        figure.add_annotation(x=place, y=height, text=safe(text), xanchor="left", xshift=5)
    figure.update_annotations(showarrow=False, borderpad=1)
