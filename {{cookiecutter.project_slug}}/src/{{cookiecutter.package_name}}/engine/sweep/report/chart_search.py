"""How a search went on, what it found, and which parameters mattered."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from . import colors
from .charts import Chart, hover, safe
from .contents import Contents
from .order import pareto_front
from .overrides import shorter
from .search import importances

# The legend above the chart, which is only half as wide as the page.
ABOVE: dict[str, Any] = {
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    "margin": {"t": 40},
}


def history(contents: Contents) -> Chart | None:
    """How a search for one objective went on: each job's value, and the best so far."""
    if not contents.studies or len(contents.objectives) != 1:
        return None
    objective = contents.objectives[0]
    jobs = [job for job in contents.in_order() if job.values[0] is not None]
    ended = [job for job in jobs if job.finished]
    if not ended:
        return None
    costs = [objective.sign * (job.values[0] or 0.0) for job in ended]
    best = objective.sign * np.minimum.accumulate(costs)
    figure = go.Figure()
    for group, name, color in (
        (ended, "job", colors.PALETTE[0]),
        ([job for job in jobs if not job.finished], "not finished", colors.NO_VALUE),
    ):
        figure.add_scatter(
            x=[job.place for job in group],
            y=[job.values[0] for job in group],
            mode="markers",
            name=name,
            marker={"color": color},
            text=[hover(contents, job) for job in group],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.add_scatter(
        x=[job.place for job in ended],
        y=best,
        mode="lines",
        name="best so far",
        line={"shape": "hv", "color": colors.PALETTE[1]},
    )
    figure.update_layout(xaxis_title="job", yaxis_title=safe(objective.name), **ABOVE)
    note = "Each job's value and the best so far."
    return Chart("history", "The search", note, figure, wide=False)


def pareto(contents: Contents) -> Chart | None:
    """Two objectives against each other."""
    if len(contents.objectives) != 2:
        return None
    first, second = contents.objectives
    jobs = [job for job in contents.jobs if None not in job.values]
    if not jobs:
        return None
    front = sorted(pareto_front(jobs, contents.objectives), key=lambda job: job.values[0] or 0.0)
    others = [job for job in jobs if job not in front]
    figure = go.Figure()
    for group, name, mode, color in (
        (others, "beaten by another", "markers", colors.NO_VALUE),
        (front, "Pareto front", "lines+markers", colors.PALETTE[1]),
    ):
        figure.add_scatter(
            x=[job.values[0] for job in group],
            y=[job.values[1] for job in group],
            mode=mode,
            name=name,
            line={"color": color, "width": 1},
            marker={"color": color, "size": 8},
            text=[hover(contents, job) for job in group],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_layout(xaxis_title=safe(first.name), yaxis_title=safe(second.name), **ABOVE)
    note = "On the front no job is better in one objective without being worse in the other."
    return Chart("pareto", f"{first.name} and {second.name}", note, figure, wide=False)


def importance(contents: Contents) -> list[Chart]:
    """For each search and objective, how much each parameter mattered; or why that is not known."""
    found = []
    for study in contents.studies:
        of = f" in {study.parent.resolve().name}" if len(contents.studies) > 1 else ""
        shares, reason = importances(study, contents.objectives)
        if reason:
            found.append(Chart("", f"Importance of parameters{of}", reason, None))
        for objective, of_each in shares.items():
            name = f"importance-{len(found)}"
            heading = f"Importance of parameters for {objective}{of}"
            note = "The share of the variation that each explains, by Optuna's fANOVA."
            found.append(Chart(name, heading, note, _bars(objective, of_each), wide=False))
    return found


def _bars(objective: str, shares: dict[str, float]) -> go.Figure:
    """How much of an objective's variation each parameter explains."""
    names = sorted(shares, key=lambda name: shares[name])
    figure = go.Figure(
        go.Bar(
            x=[shares[name] for name in names],
            y=[safe(shorter(name)) for name in names],
            orientation="h",
            marker={"color": colors.PALETTE[0]},
            text=[f"{shares[name]:.0%}" for name in names],
            hovertemplate="%{y}: %{x:.3f}<extra></extra>",
        )
    )
    figure.update_layout(xaxis_title=f"share of the variation of {safe(objective)}")
    figure.update_yaxes(showgrid=False, automargin=True)
    return figure
