"""The curves of sweep.html, and what all its charts have in common."""

from dataclasses import dataclass
from html import escape

import numpy as np
import plotly.graph_objects as go

from . import colors
from .contents import Contents
from .jobs import LOSS, Job
from .overrides import label, shorter, shown

MOST_LEGEND = 30
"""Jobs up to which a chart has a legend; beyond, the mouse says which job a line is."""


@dataclass(frozen=True)
class Chart:
    """A chart with the words around it."""

    name: str
    """Its id in the page."""
    heading: str
    """May be empty, as may the note, where the chart goes with what is above it."""
    note: str
    figure: go.Figure | None
    """None where the note is all that there is to say."""
    wide: bool = True
    """Whether it needs the whole width of the page."""
    least_width: int = 300
    height: int = 440


def loss_curves(contents: Contents) -> Chart | None:
    """The training loss of all jobs by step."""
    figure = _curves(contents, LOSS, by_epoch=False)
    if figure is None:
        return None
    figure.update_layout(updatemenus=[_log_or_linear()], margin={"t": 40})
    note = "At every step as it was logged, thinned to 500 points a job."
    return Chart("loss", LOSS, note, figure)


def objective_curves(contents: Contents) -> list[Chart]:
    """Each objective by epoch, where jobs logged it more than once."""
    found = []
    for index, objective in enumerate(contents.objectives):
        figure = _curves(contents, objective.name, by_epoch=True)
        if objective.name != LOSS and figure is not None:
            better = "More" if objective.mode == "max" else "Less"
            note = f"After every epoch. {better} is better."
            found.append(Chart(f"objective-{index}", objective.name, note, figure))
    return found


def hover(contents: Contents, job: Job) -> str:
    """A job's name, overrides and values, for Plotly."""
    lines = [f"job {job.name}, {job.status}"]
    lines += [f"{key} = {shorter(shown(job.overrides.get(key, '')))}" for key in contents.keys]
    for objective, value in zip(contents.objectives, job.values, strict=True):
        lines += [] if value is None else [f"{objective.name}: {value:.5g}"]
    return "<br>".join(safe(shorter(line, 80)) for line in lines)


def safe(text: str) -> str:
    """A text that Plotly takes for nothing but text: no element, formula or placeholder."""
    return escape(text, quote=False).replace("$", "&#36;").replace("{", "&#123;")


def _curves(contents: Contents, metric: str, by_epoch: bool) -> go.Figure | None:
    jobs = [job for job in contents.in_order() if len(job.curves.get(metric, ())) > 1]
    if not jobs:
        return None
    color = colors.by_job(contents)
    figure = go.Figure()
    for job in jobs:
        curve = job.curves[metric].thinned()
        figure.add_scatter(
            x=(curve.epochs if by_epoch else curve.steps).astype(np.float32),
            y=curve.values.astype(np.float32),
            mode="lines+markers" if by_epoch and len(curve) < 30 else "lines",
            name=safe(shorter(_legend(contents, job), 40)),
            meta=job.name,
            line={"color": color[job.name], "width": 1.5},
            marker={"size": 4},
            hovertemplate=hover(contents, job) + "<br>%{x}: %{y:.5g}<extra></extra>",
        )
    figure.update_layout(
        xaxis_title="epoch" if by_epoch else "step",
        yaxis_title=safe(metric),
        showlegend=len(jobs) <= MOST_LEGEND,
    )
    return figure


def _log_or_linear() -> dict[str, object]:
    return {
        "type": "buttons",
        "direction": "right",
        "x": 1,
        "xanchor": "right",
        "y": 1.02,
        "yanchor": "bottom",
        "showactive": False,
        "pad": {"t": 0, "b": 4},
        "buttons": [
            {"label": kind, "method": "relayout", "args": [{"yaxis.type": kind}]}
            for kind in ("linear", "log")
        ],
    }


def _legend(contents: Contents, job: Job) -> str:
    words = label(job.overrides, contents.keys)
    return f"{job.name}: {words}" if words else job.name
