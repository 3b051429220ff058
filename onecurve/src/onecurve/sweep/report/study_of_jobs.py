"""The jobs of any sweep as trials of an Optuna study, in memory: Optuna can rank and draw them."""

from collections.abc import Sequence
from html import escape

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from .job_results import Job, Objective
from .overrides import as_number, short_keys, shown

MOST_VALUES = 12
"""Different numbers of a key up to which each has a place of its own on an axis."""
LOGARITHMIC = 10.0
"""From this ratio of the largest to the smallest number on, their axis is logarithmic."""
MOST_LETTERS = 24
DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}


def study_of(
    jobs: Sequence[Job], objectives: Sequence[Objective], keys: Sequence[str]
) -> optuna.Study:
    """A study whose trials are the jobs; complete are those that finished with all values.

    Args:
        jobs: In the order in which they were numbered.
        objectives: What they are judged by; if there is none, no trial is complete.
        keys: The override keys that vary.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = [DIRECTIONS[each.mode] for each in objectives]
    study = optuna.create_study(directions=directions or ["minimize"])
    complete = [job for job in jobs if job.finished and None not in job.values.values()]
    complete = complete if objectives else []
    params: dict[Job, dict[str, float | str]] = {job: {} for job in complete}
    distributions: dict[str, BaseDistribution] = {}
    for key, short in short_keys(keys if complete else []).items():
        # Plotly takes a text for HTML.
        name, values = escape(short), _values(complete, key)
        distributions[name] = _distribution(values)
        for job, value in zip(complete, values, strict=True):
            params[job][name] = value
    for job in jobs:
        if job in params:
            trial = create_trial(
                values=[value for value in job.values.values() if value is not None],
                params=params[job],
                distributions=distributions,
                user_attrs={"job": escape(job.name)},
            )
        else:
            trial = create_trial(state=TrialState.FAIL)
        study.add_trial(trial)
    return study


def _values(jobs: Sequence[Job], key: str) -> Sequence[float | str]:
    """The values of an override key: numbers if all are, else texts."""
    texts = [job.overrides.get(key, "") for job in jobs]
    numbers = [number for text in texts if (number := as_number(text)) is not None]
    if len(numbers) == len(texts):
        return [int(number) if number.is_integer() else number for number in numbers]
    return [escape(shown(text, MOST_LETTERS)) for text in texts]


def _distribution(values: Sequence[float | str]) -> BaseDistribution:
    numbers = [value for value in values if not isinstance(value, str)]
    # What somebody typed, and no sampler drew, is few and short.
    typed = len(set(numbers)) <= MOST_VALUES and all(float(f"{n:.4g}") == n for n in numbers)
    if not numbers or typed:
        return CategoricalDistribution(list(dict.fromkeys(values)))
    low, high = min(numbers), max(numbers)
    return FloatDistribution(low, high, log=low > 0 and high / low >= LOGARITHMIC)
