"""What the page draws: curves by Plotly, and how overrides and results go together by Optuna."""

import math
import re
import warnings
from html import escape

import optuna.visualization as draw
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from .job_results import LOSS, Job
from .overrides import label, shown
from .sweep_results import SweepResults

MOST_LETTERS = 60
"""Of a job's overrides in a legend."""
MOST_NAMES = 8
"""Of jobs that share a line."""
UNSEEN = 1e-3
"""How far, relatively, two curves may be from each other to be drawn as one."""
LIGHTEST = 0.45
"""Where on the scale from white to dark blue the line of the worst job is."""
FEWEST_TRIALS = 4
"""From which on it can be said which parameters mattered."""


def charts_of(sweep: SweepResults) -> dict[str, go.Figure]:
    """The charts by a name for each; those for which the sweep has nothing are left out."""
    found = {"loss": _curves(sweep, LOSS)}
    for index, objective in enumerate(sweep.objectives):
        if objective.name != LOSS:
            found[f"objective-{index}"] = _curves(sweep, objective.name)
    if sweep.best:
        with warnings.catch_warnings():
            # Some of what Optuna draws is experimental, it says.
            warnings.simplefilter("ignore")
            found |= _of_study(sweep)
    found = {name: figure for name, figure in found.items() if figure.data}
    for figure in found.values():
        figure.update_layout(template="plotly_white", height=420, margin={"t": 70, "b": 50})
    return found


def _curves(sweep: SweepResults, metric: str) -> go.Figure:
    """A metric by step; a line for each job that logged it more than once.

    Jobs whose lines would lie on top of each other share one, with all their names.
    """
    figure = go.Figure()
    for jobs in _alike([job for job in sweep.jobs if len(job.curves[metric]) > 1], metric):
        steps, values = zip(*jobs[0].curves[metric], strict=True)
        lines = []
        for job in jobs:
            name = f"{job.name}: {label(job.overrides, sweep.keys)}".removesuffix(": ")
            lines.append(escape(shown(name, MOST_LETTERS)))
        if more := lines[MOST_NAMES:]:
            lines[MOST_NAMES:] = [f"and {len(more)} more"]
        if len(jobs) > 1:
            most = max(_difference(jobs[0], job, metric) for job in jobs)
            lines.append(f"(equal to {most:.0e})" if most else "(equal)")
        figure.add_scatter(x=steps, y=values, name="<br>".join(lines))
    scales = [
        {"label": scale, "method": "relayout", "args": [{"yaxis.type": scale}]}
        for scale in ("linear", "log")
    ]
    menu = {"type": "buttons", "direction": "right", "x": 1, "y": 1.2, "buttons": scales}
    figure.update_traces(mode="lines")
    figure.update_layout(title=escape(metric), xaxis_title="step", updatemenus=[menu])
    figure.update_layout(showlegend=True, hoverlabel={"namelength": -1})
    return figure


def _alike(jobs: list[Job], metric: str) -> list[list[Job]]:
    """Jobs whose curves lie on top of each other, together, in the order of the first of each."""
    families: list[list[Job]] = []
    for job in jobs:
        found = (each for each in families if _difference(each[0], job, metric) <= UNSEEN)
        if family := next(found, None):
            family.append(job)
        else:
            families.append([job])
    return families


def _difference(first: Job, other: Job, metric: str) -> float:
    """The largest relative difference of two curves; infinite for other steps or no numbers."""
    steps, values = zip(*first.curves[metric], strict=True)
    if steps != tuple(step for step, _ in other.curves[metric]):
        return math.inf
    pairs = [(a, b) for a, (_, b) in zip(values, other.curves[metric], strict=True) if a != b]
    if any(not math.isfinite(a - b) for a, b in pairs):
        return math.inf
    return max((abs(a - b) / max(abs(a), abs(b)) for a, b in pairs), default=0.0)


def _darker(colour: str) -> str:
    """A colour of Optuna's scale, of which the lightest is white, on the darker half of it."""
    red = int(re.findall(r"\d+", colour)[0])
    (found,) = sample_colorscale("Blues", [LIGHTEST + (1 - LIGHTEST) * (255 - red) / 255])
    return str(found)


def _of_study(sweep: SweepResults) -> dict[str, go.Figure]:
    """Parallel coordinates of the jobs that finished, and of a search how it went."""
    study, names = sweep.study, [escape(each.name) for each in sweep.objectives]
    if len(names) > 1:
        study.set_metric_names(names)
    parallel = draw.plot_parallel_coordinate(study, target_name=names[0])
    parallel.update_traces(opacity=1, line_width=2)
    for trace in parallel.data:
        if trace.mode == "lines" and trace.line.color.startswith("rgb"):
            trace.line.color = _darker(trace.line.color)
        elif trace.mode == "markers":
            scale = trace.marker.colorscale
            trace.marker.colorscale = [(place, _darker(colour)) for place, colour in scale]
    found = {"parallel": parallel}
    if len(names) == 2:
        found["pareto"] = draw.plot_pareto_front(study, target_names=names)
    if sweep.is_search and len(names) == 1:
        history = draw.plot_optimization_history(study, target_name=names[0])
        for trace in history.data:
            # Jobs are counted from 1, trials from 0.
            trace.x = [number + 1 for number in trace.x]
        found["history"] = history.update_xaxes(title="job")
        if sum(job.finished for job in sweep.jobs) >= FEWEST_TRIALS:
            found["importance"] = draw.plot_param_importances(study, target_name=names[0])
    return found
