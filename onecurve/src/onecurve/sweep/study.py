"""The study of a search: what may be tried, and Optuna's record of all trials on disk."""

import math
import warnings
from inspect import signature
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ..errors import UserError

NAME = "sweep"
SQLITE_TIMEOUT_SECONDS = 60
DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}

Space = dict[str, BaseDistribution]
"""The distribution of every key that is searched."""


def read_space(overrides: list[Override]) -> tuple[Space, list[str]]:
    """Split overrides into what is searched, and the others as they were typed.

    ``a,b,c`` is a choice, ``range(1,9)`` or ``range(0,1,0.1)`` an evenly spaced number, and
    ``interval(1,8)`` or ``interval(0.1,1)`` a number between; ``tag(log, ...)`` of a range or an
    interval searches its logarithm.
    """
    space = {
        override.get_key_element(): _distribution(override)
        for override in overrides
        if override.is_sweep_override()
    }
    others = [override.input_line or "" for override in overrides]
    return space, [word for word in others if word.partition("=")[0] not in space]


def _distribution(override: Override) -> BaseDistribution:
    sweep = override.value()
    try:
        if isinstance(sweep, IntervalSweep):
            return _number(sweep.start, sweep.end, None, "log" in sweep.tags)
        if isinstance(sweep, RangeSweep) and not sweep.shuffle:
            values = list(override.sweep_iterator())
            return _number(values[0], values[-1], sweep.step, "log" in sweep.tags)
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except (ValueError, IndexError) as error:
        raise UserError(
            f"{override.input_line}: is no space to search ({error}); such as "
            f"{override.key_or_group}=interval(0.1,1)"
        ) from None


def _number(low: Any, high: Any, step: Any, log: bool) -> BaseDistribution:
    if all(isinstance(value, int) for value in (low, high, step or 1)):
        return IntDistribution(low, high, log=log, step=1 if log else step or 1)
    return FloatDistribution(float(low), float(high), log=log, step=None if log else step)


def takes_grid(search: DictConfig) -> bool:
    """Whether the sampler enumerates all values, as Optuna's GridSampler does."""
    return "search_space" in signature(get_class(search.sampler._target_)).parameters


def grid_of(space: Space) -> dict[str, list[Any]]:
    """All values of each key, for a sampler that enumerates them; an interval is rejected."""
    values: dict[str, list[Any]] = {}
    for key, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            values[key] = list(distribution.choices)
        elif isinstance(distribution, IntDistribution):
            values[key] = list(range(distribution.low, distribution.high + 1, distribution.step))
        elif isinstance(distribution, FloatDistribution) and distribution.step:
            count = round((distribution.high - distribution.low) / distribution.step) + 1
            values[key] = [distribution.low + n * distribution.step for n in range(count)]
        else:
            raise UserError(
                f"{key}: sweep/sampler=grid needs values, not an interval; list some, such as "
                f"{key}=0.1,0.2, or use sweep/sampler=tpe"
            )
    return values


def open_study(address: str, modes: list[str], pruner: DictConfig | None) -> optuna.Study:
    """Load the study in a storage, or create it; `modes` are those of its objectives."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # A trial that is resumed reports the validations since its checkpoint again.
    warnings.filterwarnings("ignore", "The reported value is ignored")
    return optuna.create_study(
        study_name=NAME,
        storage=storage(address),
        directions=[DIRECTIONS[mode] for mode in modes],
        pruner=instantiate(pruner) if pruner else None,
        load_if_exists=True,
    )


def storage(address: str) -> optuna.storages.RDBStorage:
    """The storage at an address, with time for other processes to write."""
    arguments = {"timeout": SQLITE_TIMEOUT_SECONDS} if address.startswith("sqlite:") else {}
    if address.startswith("sqlite:///"):
        Path(address.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": arguments})


def number_of_trials(search: DictConfig, space: Space) -> int:
    """How many trials there are in the end: `sweep.trials`, but not more than points of a grid."""
    trials = int(search.trials)
    if not takes_grid(search):
        return trials
    return min(trials, math.prod(len(values) for values in grid_of(space).values()))


def ask(study: optuna.Study, search: DictConfig, space: Space) -> FrozenTrial:
    """A new trial, which follows from the seed and the trials so far alone.

    A search that was killed and resumed is therefore the same as one that was not.
    """
    arguments: dict[str, Any] = {"seed": search.seed + len(study.get_trials(deepcopy=False))}
    if takes_grid(search):
        # The seed decides the order of the grid, which is one for all trials.
        arguments = {"seed": search.seed, "search_space": grid_of(space)}
    study.sampler = instantiate(search.sampler, **arguments)
    number = study.ask(fixed_distributions=space).number
    return study.get_trials(deepcopy=False)[number]


def tell(study: optuna.Study, number: int, state: TrialState, values: list[float] | None) -> None:
    """Record how a trial ended."""
    try:
        study.tell(number, values, state)
    except RuntimeError as error:
        # After its last trial a grid sampler stops Optuna's own loop, which there is none of here.
        if "Study.stop" not in str(error):
            raise
