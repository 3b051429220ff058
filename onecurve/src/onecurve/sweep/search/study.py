"""The study of a search: Optuna's record of all trials, which outlives any process."""

import math
import warnings
from inspect import signature
from pathlib import Path
from typing import Any

import optuna
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from .space import grid_of

NAME = "sweep"
SECONDS_TO_WAIT_FOR_ANOTHER = 60
DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def open_study(storage: str, directions: list[str], pruner: DictConfig | None) -> optuna.Study:
    """The study in a storage, made if it is not there.

    Args:
        storage: Its address, as SQLAlchemy writes it.
        directions: "min" or "max" for each objective.
        pruner: Which trials to end early; None for none.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # Optuna's warning where a trial that is gone on with reports again.
    warnings.filterwarnings("ignore", "The reported value is ignored")
    return optuna.create_study(
        study_name=NAME,
        storage=_storage(storage),
        directions=[DIRECTIONS[direction] for direction in directions],
        pruner=instantiate(pruner) if pruner else None,
        load_if_exists=True,
    )


def most_trials(config: DictConfig, space: dict[str, BaseDistribution]) -> int:
    """How many trials there are in the end: as many as asked for, or as a grid has points.

    Args:
        config: The group `sweep`.
        space: What is searched.
    """
    trials = int(config.trials)
    if not takes_grid(config):
        return trials
    return min(trials, math.prod(len(values) for values in grid_of(space).values()))


def takes_grid(config: DictConfig) -> bool:
    """Whether the sampler goes through all values instead of drawing some."""
    return "search_space" in signature(get_class(config.sampler._target_)).parameters


def has_ended(study: optuna.Study, trials: int) -> bool:
    """Whether there are as many trials, and nobody works on one."""
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    return len(states) >= trials and all(state in ENDED for state in states)


def ask(study: optuna.Study, config: DictConfig, space: dict[str, BaseDistribution]) -> FrozenTrial:
    """A new trial.

    What the sampler draws follows from the seed and the trials so far alone, so that a search that
    is cut short and gone on with is the one that is not.

    Args:
        study: The study.
        config: The group `sweep`: its sampler and seed.
        space: What is searched.
    """
    given: dict[str, Any] = {"seed": config.seed + len(study.get_trials(deepcopy=False))}
    if takes_grid(config):
        # The seed is the order of the grid, in which each trial takes its place.
        given = {"seed": config.seed, "search_space": grid_of(space)}
    study.sampler = instantiate(config.sampler, **given)
    number = study.ask(fixed_distributions=space).number
    return study.get_trials(deepcopy=False)[number]


def tell(study: optuna.Study, number: int, state: TrialState, values: list[float] | None) -> None:
    """How a trial ended."""
    try:
        study.tell(number, values, state)
    except RuntimeError as error:
        # What a grid sampler asks for after its last trial is for Optuna's own loop.
        if "Study.stop" not in str(error):
            raise


def should_prune(
    storage: str, number: int, validation: int, value: float, pruner: DictConfig | None
) -> bool:
    """Tell the study how far a trial is, and ask what its pruner thinks of that.

    Args:
        storage: The study's address.
        number: The trial's.
        validation: Which validation this is, from 1.
        value: The objective.
        pruner: Decides.

    Returns:
        Whether to end the trial.
    """
    study = optuna.load_study(
        study_name=NAME,
        storage=_storage(storage),
        pruner=instantiate(pruner) if pruner else None,
    )
    trial = optuna.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)
    trial.report(value, validation)
    return trial.should_prune()


def _storage(address: str) -> optuna.storages.RDBStorage:
    arguments = {"timeout": SECONDS_TO_WAIT_FOR_ANOTHER} if address.startswith("sqlite:") else {}
    if address.startswith("sqlite:///"):
        Path(address.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": arguments})
