"""What the page draws: curves by Plotly, and how overrides and results go together by Optuna."""

import warnings
from html import escape

import optuna.visualization as draw
import plotly.graph_objects as go

from .job_results import LOSS
from .overrides import label, shown
from .sweep_results import SweepResults

MOST_LETTERS = 60
"""Of a job's overrides in a legend."""
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
    """A metric by step; a line for each job that logged it more than once."""
    figure = go.Figure()
    for job in sweep.jobs:
        if len(job.curves[metric]) > 1:
            steps, values = zip(*job.curves[metric], strict=True)
            name = f"{job.name}: {label(job.overrides, sweep.keys)}".removesuffix(": ")
            figure.add_scatter(x=steps, y=values, name=escape(shown(name, MOST_LETTERS)))
    scales = [
        {"label": scale, "method": "relayout", "args": [{"yaxis.type": scale}]}
        for scale in ("linear", "log")
    ]
    menu = {"type": "buttons", "direction": "right", "x": 1, "y": 1.2, "buttons": scales}
    figure.update_traces(mode="lines")
    figure.update_layout(title=escape(metric), xaxis_title="step", updatemenus=[menu])
    figure.update_layout(showlegend=True, hoverlabel={"namelength": -1})
    return figure


def _of_study(sweep: SweepResults) -> dict[str, go.Figure]:
    """Parallel coordinates of the jobs that finished, and of a search how it went."""
    study, names = sweep.study, [escape(each.name) for each in sweep.objectives]
    if len(names) > 1:
        study.set_metric_names(names)
    parallel = draw.plot_parallel_coordinate(study, target_name=names[0])
    # The line of the worst job is white.
    parallel.update_layout(plot_bgcolor="#d3dae3").update_traces(opacity=1, line_width=2)
    parallel.update_annotations(bgcolor="#d3dae3")
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
