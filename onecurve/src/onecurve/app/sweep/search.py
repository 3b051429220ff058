"""`sweep=optuna`: Optuna proposes trials, each of which is a job.

The released plugin, hydra-optuna-sweeper 1.3, requires Optuna 2, whose SQLite storage fails with
today's SQLAlchemy. Nor can it do what a search must do here: resume the trials that a kill
interrupted, and end bad trials from inside training.
"""

import warnings
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from omegaconf import DictConfig
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from ...errors import UserError
from ...launch.context import EndedEarly
from ..command.resolvers import job_directory
from ..run.record import quoted, read_metrics
from .directory import COMPLETE, STOPPED
from .results import DIRECTIONS, Objective, validate_objective
from .sweep import overrides_of

Space = dict[str, BaseDistribution]  # the distribution of every key that is searched


class Search:
    """Asks a study for trials, runs them as jobs, and tells it how they ended."""

    def __init__(
        self, config: DictConfig, hydra_context: HydraContext, task_function: TaskFunction
    ) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.directory = Path(str(config.hydra.sweep.dir))
        self.launched: set[int] = set()  # numbers of trials

    def run(self) -> None:
        """Run trials until there are `sweep.trials`; a UserError if one lacks the objective."""
        self.space, self.fixed = read_space(overrides_of(self.config))
        search = self.config.sweep
        self.objective = Objective.of(self.config)
        self.study = open_study(search)
        self.count = int(search.trials)
        while not (self.directory / STOPPED).exists():
            batch = [trial for _ in range(search.parallel) if (trial := self._next_trial())]
            if not batch:
                break
            jobs = [self._overrides(trial) for trial in batch]
            self.launcher.launch(jobs, initial_job_idx=batch[0].number)
            for trial in batch:
                self._tell(trial)
        trials = self.study.get_trials(deepcopy=False)
        if len(trials) >= self.count and all(trial.state.is_finished() for trial in trials):
            (self.directory / COMPLETE).touch()

    def _next_trial(self) -> FrozenTrial | None:
        """A trial that was interrupted, or a new one; None if there are enough."""
        trials = self.study.get_trials(deepcopy=False)
        left = [trial for trial in trials if trial.state == TrialState.RUNNING]
        trial = next((trial for trial in left if trial.number not in self.launched), None)
        if trial is None and len(trials) < self.count:
            trial = self._ask(number=len(trials))
        if trial is not None:
            self.launched.add(trial.number)
        return trial

    def _ask(self, number: int) -> FrozenTrial:
        """A new trial, which follows from the seed and the trials so far alone.

        A search that was killed and resumed is therefore the same as one that was not.
        """
        search = self.config.sweep
        self.study.sampler = instantiate(search.sampler, seed=search.seed + number)
        asked = self.study.ask(fixed_distributions=self.space).number
        return self.study.get_trials(deepcopy=False)[asked]

    def _overrides(self, trial: FrozenTrial) -> list[str]:
        return [
            *self.fixed,
            *_varied(trial),
            f"sweep.trial={trial.number}",
            f"sweep.trials={self.count}",
            f"hydra.sweep.subdir={quoted(_job_name(trial))}",
        ]

    def _tell(self, trial: FrozenTrial) -> None:
        """Record how a trial ended; one that was interrupted, or runs in another process, stays."""
        run_dir = self.directory / _job_name(trial)
        metrics = read_metrics(run_dir)
        status, error = metrics.get("status"), str(metrics.get("error", ""))
        state, value = TrialState.FAIL, None
        if status == "pruned":
            state = TrialState.PRUNED
        elif status in ("finished", "diverged"):
            numbers = [key for key, value in metrics.items() if isinstance(value, int | float)]
            validate_objective(self.objective.name, numbers)
            value = self.objective.reached(run_dir)
            if value is not None:
                state = TrialState.COMPLETE
        elif status != "failed":
            return
        self.study.tell(trial.number, value, state)
        if status == "failed" and error.startswith(("sweep.objective=", "monitor=", "mode=")):
            raise UserError(error)


def _varied(trial: FrozenTrial) -> list[str]:
    return [f"{key}={value}" for key, value in trial.params.items()]


def _job_name(trial: FrozenTrial) -> str:
    return job_directory(trial.number, ",".join(_varied(trial)))


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
            f"{override.input_line}: is not a search space ({error}); such as "
            f"{override.key_or_group}=interval(0.1,1)"
        ) from None


def _number(low: Any, high: Any, step: Any, log: bool) -> BaseDistribution:
    if all(isinstance(value, int) for value in (low, high, step or 1)):
        return IntDistribution(low, high, log=log, step=1 if log else step or 1)
    return FloatDistribution(float(low), float(high), log=log, step=None if log else step)


def open_study(search: Any) -> optuna.Study:
    """Load the study of a search, or create it; others have time to write to its storage."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # A trial that is resumed reports the validations since its checkpoint again.
    warnings.filterwarnings("ignore", "The reported value is ignored")
    arguments = {"timeout": 60} if search.storage.startswith("sqlite:") else {}
    return optuna.create_study(
        study_name="sweep",
        storage=optuna.storages.RDBStorage(
            search.storage, engine_kwargs={"connect_args": arguments}
        ),
        direction=DIRECTIONS[search.direction],
        pruner=instantiate(search.pruner),
        load_if_exists=True,
    )


class Pruning(Callback):
    """Reports the objective after every validation. Rank 0 asks the pruner; all ranks end together.

    An objective that a run has only at its end, such as that of the test set, is not reported.
    """

    def __init__(self, search: Any) -> None:
        self.search = search
        self.validations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = state_dict["validations"]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        self.validations += 1
        name = self.search.objective
        if "/" not in name or name.startswith("test/"):
            return
        metrics = trainer.callback_metrics
        validate_objective(name, list(metrics))
        prune = trainer.is_global_zero and self._should_prune(float(metrics[name]))
        if trainer.strategy.broadcast(prune):
            raise EndedEarly("pruned")

    def _should_prune(self, value: float) -> bool:
        study = open_study(self.search)
        frozen = study.get_trials(deepcopy=False)[self.search.trial]
        trial = optuna.Trial(study, frozen._trial_id)
        trial.report(value, self.validations)
        return trial.should_prune()
