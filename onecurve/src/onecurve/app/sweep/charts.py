"""The charts of a report: curves by Plotly, and what Optuna draws of a study of all jobs."""

import warnings
from collections.abc import Sequence
from html import escape

import optuna
import optuna.visualization as draw
import plotly.graph_objects as go
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from .results import DIRECTIONS, LOSS, Job, SweepResults, as_number, label, short_keys, shown

LEGEND_LETTERS = 60  # of a job's overrides in a legend
AXIS_LETTERS = 24  # of a text on an axis
FEWEST_TRIALS = 4  # for the importance of parameters
MOST_VALUES = 12  # numbers of a key that are spaced evenly on an axis, as texts are
LOGARITHMIC = 10.0  # ratio of the largest and the smallest number from which on an axis is such


def charts_of(sweep: SweepResults) -> dict[str, go.Figure]:
    """The charts by name; those for which the sweep has nothing are left out."""
    found = {"loss": _curves(sweep, LOSS)}
    for index, objective in enumerate(sweep.objectives):
        if objective.name != LOSS:
            found[f"objective-{index}"] = _curves(sweep, objective.name)
    if sweep.best:
        with warnings.catch_warnings():
            # Some of Optuna's charts are experimental.
            warnings.simplefilter("ignore")
            found |= _of_study(sweep)
    found = {name: figure for name, figure in found.items() if figure.data}
    for figure in found.values():
        top = 90 if figure.layout.updatemenus else 60
        figure.update_layout(height=420, margin={"t": top, "b": 50})
        figure.update_layout(title={"x": 0.01, "xanchor": "left", "y": 0.96, "yref": "container"})
    return found


def _curves(sweep: SweepResults, metric: str) -> go.Figure:
    """A metric by step: a line for each job that logged it more than once."""
    figure = go.Figure()
    for job in sweep.jobs:
        if len(job.curves[metric]) > 1:
            steps, values = zip(*job.curves[metric], strict=True)
            name = f"{job.name}: {label(job.overrides, sweep.keys)}".removesuffix(": ")
            figure.add_scatter(x=steps, y=values, name=escape(shown(name, LEGEND_LETTERS)))
    buttons = [
        {"label": scale, "method": "relayout", "args": [{"yaxis.type": scale}]}
        for scale in ("linear", "log")
    ]
    # Below the title: the toolbar is at the right.
    left = {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, **left}
    figure.update_traces(mode="lines")
    figure.update_layout(title=escape(metric), xaxis_title="step", updatemenus=[menu])
    return figure.update_layout(showlegend=True, hoverlabel={"namelength": -1})


def _of_study(sweep: SweepResults) -> dict[str, go.Figure]:
    """Parallel coordinates of the complete jobs, and how a search went."""
    study, names = _study(sweep), [escape(each.name) for each in sweep.objectives]
    if len(names) > 1:
        study.set_metric_names(names)
    found = {"parallel": draw.plot_parallel_coordinate(study, target_name=names[0])}
    if len(names) == 2:
        found["pareto"] = draw.plot_pareto_front(study, target_names=names)
    if sweep.is_search and len(names) == 1:
        history = draw.plot_optimization_history(study, target_name=names[0])
        for trace in history.data:
            # Jobs are numbered from 1, trials from 0.
            trace.x = [number + 1 for number in trace.x]
        found["history"] = history.update_xaxes(title="job")
        if sum(job.finished for job in sweep.jobs) >= FEWEST_TRIALS:
            found["importance"] = draw.plot_param_importances(study, target_name=names[0])
    return found


def _study(sweep: SweepResults) -> optuna.Study:
    """A study in memory whose trials are the jobs, of a grid as well as of a search."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=[DIRECTIONS[each.mode] for each in sweep.objectives])
    complete = [job for job in sweep.jobs if job.complete]
    params: dict[Job, dict[str, float | str]] = {job: {} for job in complete}
    distributions: dict[str, BaseDistribution] = {}
    for key, short in short_keys(sweep.keys).items():
        # Plotly reads texts as HTML.
        name, values = escape(short), _axis_values([job.overrides.get(key, "") for job in complete])
        distributions[name] = _distribution(values)
        for job, value in zip(complete, values, strict=True):
            params[job][name] = value
    for job in sweep.jobs:
        trial = create_trial(state=TrialState.FAIL)
        if job in params:
            trial = create_trial(
                values=[value for value in job.values.values() if value is not None],
                params=params[job],
                distributions=distributions,
                user_attrs={"job": escape(job.name)},
            )
        study.add_trial(trial)
    return study


def _axis_values(texts: Sequence[str]) -> Sequence[float | str]:
    numbers = [number for text in texts if (number := as_number(text)) is not None]
    if len(numbers) == len(texts):
        return [int(number) if number.is_integer() else number for number in numbers]
    return [escape(shown(text, AXIS_LETTERS)) for text in texts]


def _distribution(values: Sequence[float | str]) -> BaseDistribution:
    numbers = [value for value in values if not isinstance(value, str)]
    # Few and short numbers were typed, and not drawn by a sampler.
    typed = len(set(numbers)) <= MOST_VALUES and all(float(f"{n:.4g}") == n for n in numbers)
    if not numbers or typed:
        return CategoricalDistribution(list(dict.fromkeys(values)))
    low, high = min(numbers), max(numbers)
    return FloatDistribution(low, high, log=low > 0 and high / low >= LOGARITHMIC)
