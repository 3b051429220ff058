"""The charts of a report by Plotly: curves of metrics, and parallel coordinates of all jobs."""

import math
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from .results import SweepResults, as_number, label, short_keys, shown

LEGEND_LETTERS = 60  # of a job's overrides in a legend
AXIS_LETTERS = 24  # of a text on an axis
LINE_OF_TEXT = 0.07  # of the height of the chart
LOGARITHMIC = 10.0  # ratio of the largest and the smallest number from which on an axis is such


def charts_of(sweep: SweepResults) -> dict[str, go.Figure]:
    """The charts by name; those for which the sweep has nothing are left out."""
    figures = {"loss": _curves(sweep, sweep.loss), "parallel": _parallel(sweep)}
    if sweep.objective.name != sweep.loss:
        figures["objective"] = _curves(sweep, sweep.objective.name)
    figures = {name: figure for name, figure in figures.items() if figure.data}
    for figure in figures.values():
        figure.update_layout(height=420, margin={"t": 60, "b": 50})
    return figures


def _curves(sweep: SweepResults, metric: str) -> go.Figure:
    """A metric by step: a line for each job that logged it more than once."""
    figure = go.Figure()
    for job in sweep.jobs:
        if len(job.curves[metric]) > 1:
            steps, values = zip(*job.curves[metric], strict=True)
            name = f"{job.name}: {label(job.overrides, sweep.keys)}".removesuffix(": ")
            # Plotly reads texts as HTML.
            name = escape(shown(name, LEGEND_LETTERS))
            figure.add_scatter(x=steps, y=values, name=name, mode="lines")
    figure.update_layout(title=escape(metric), xaxis_title="step", showlegend=True)
    return figure


def _parallel(sweep: SweepResults) -> go.Figure:
    """Parallel coordinates: a line for each complete job, from the objective through its keys.

    Plotly's own need WebGL, which not every browser has.
    """
    figure = go.Figure()
    jobs = [job for job in sweep.jobs if job.complete]
    if len(jobs) < 2:
        return figure
    axes = {sweep.objective.name: [str(job.value) for job in jobs]}
    axes |= {
        name: [job.overrides.get(key, "") for job in jobs]
        for key, name in short_keys(sweep.keys).items()
    }
    heights = {name: _heights(texts) for name, texts in axes.items()}
    scale = "Viridis" if sweep.objective.mode == "max" else "Viridis_r"
    for index, job in enumerate(jobs):
        texts = [f"{name}={shown(axes[name][index], AXIS_LETTERS)}" for name in axes]
        line = [heights[name][index] for name in axes]
        figure.add_scatter(
            x=list(range(len(axes))),
            y=line,
            text=[escape(text) for text in texts],
            name=f"job {escape(job.name)}",
            hoverinfo="text+name",
            line={"color": sample_colorscale(scale, line[0])[0]},
        )
    for place, name in enumerate(axes):
        ticks = dict(zip(heights[name], axes[name], strict=True))
        # Both ends, and what is between them as far as texts do not cover one another.
        labelled = {min(ticks), max(ticks)}
        for height in ticks if len(ticks) <= 8 else ():
            if all(abs(height - other) > LINE_OF_TEXT for other in labelled):
                labelled.add(height)
        for height in labelled:
            figure.add_annotation(
                text=escape(shown(ticks[height], AXIS_LETTERS)),
                x=place,
                y=height,
                xanchor="left",
                xshift=8,
                bgcolor="rgba(255, 255, 255, 0.8)",
                showarrow=False,
            )
    names = [escape(shown(name, AXIS_LETTERS)) for name in axes]
    figure.update_xaxes(tickvals=list(range(len(axes))), ticktext=names)
    figure.update_yaxes(visible=False)
    return figure.update_layout(title="Parallel coordinates", showlegend=False)


def _heights(texts: Sequence[str]) -> list[float]:
    """Where the values of a key are on its axis, from 0 to 1: numbers by size, texts in a row."""
    numbers = [number for text in texts if (number := as_number(text)) is not None]
    if len(numbers) < len(texts):
        different = list(dict.fromkeys(texts))
        numbers = [float(different.index(text)) for text in texts]
    elif min(numbers) > 0 and max(numbers) / min(numbers) >= LOGARITHMIC:
        numbers = [math.log(number) for number in numbers]
    low, high = min(numbers), max(numbers)
    return [(number - low) / (high - low) if high > low else 0.5 for number in numbers]
