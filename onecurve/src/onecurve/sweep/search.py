"""`sweep=optuna`: Optuna proposes trials, each of which is a job.

The released plugin, hydra-optuna-sweeper 1.3, requires Optuna 2, whose SQLite storage fails with
today's SQLAlchemy. Nor can it do what a search must do here: resume the trials that a kill
interrupted, let a second process join, and end bad trials from inside training.
"""

from math import isfinite
from pathlib import Path

import optuna
from filelock import FileLock
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from optuna.trial import FrozenTrial, TrialState

from ..command.resolvers import job_directory
from ..errors import UserError
from ..run.invocation import invocation, quoted
from ..run.record import try_lock
from .directory import COMPLETE, STOPPED, read_metrics
from .hooks import overrides_of
from .results import objectives, validate_objective
from .study import NAME, ask, number_of_trials, open_study, read_space, tell


class Search:
    """Asks a study for trials, runs them as jobs, and tells it how they ended.

    Made with the arguments of a sweeper's `setup`.
    """

    def __init__(
        self, config: DictConfig, hydra_context: HydraContext, task_function: TaskFunction
    ) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.directory = Path(str(config.hydra.sweep.dir))
        self.locks: dict[int, FileLock] = {}

    def run(self) -> None:
        """Run trials until there are `sweep.trials`; a UserError if one lacks the objective."""
        self.space, self.fixed = read_space(overrides_of(self.config))
        search = self.config.sweep
        self.objectives = objectives(self.config)
        # Two processes at once would both create the tables.
        with self._locked_study():
            modes = [each.mode for each in self.objectives]
            pruner = search.pruner if len(modes) == 1 else None
            self.study = open_study(search.storage, modes, pruner)
        self.count = number_of_trials(search, self.space)
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

    def _locked_study(self) -> FileLock:
        folder = self.directory / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / "study")

    def _next_trial(self) -> FrozenTrial | None:
        """An interrupted trial, or a new one; None if there are enough."""
        with self._locked_study():
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == TrialState.RUNNING and self._lock(trial.number):
                    return trial
            if len(trials) >= self.count:
                return None
            trial = ask(self.study, self.config.sweep, self.space)
            self._lock(trial.number)
            return trial

    def _lock(self, number: int) -> bool:
        if number in self.locks:
            return False
        if lock := try_lock(self.directory / ".locks" / f"trial-{number + 1}"):
            self.locks[number] = lock
        return lock is not None

    def _overrides(self, trial: FrozenTrial) -> list[str]:
        return [
            *self.fixed,
            *_varied(trial),
            f"sweep.trial={trial.number}",
            f"sweep.trials={self.count}",
            f"hydra.sweep.subdir={quoted(_job_name(trial))}",
        ]

    def _tell(self, trial: FrozenTrial) -> None:
        run_dir, number = self.directory / _job_name(trial), trial.number
        metrics = read_metrics(run_dir)
        status, error = metrics.get("status"), str(metrics.get("error", ""))
        if status == "failed":
            tell(self.study, number, TrialState.FAIL, None)
            if error.startswith(("sweep.objective=", "monitor=", "mode=")):
                raise UserError(error)
        elif status == "pruned":
            tell(self.study, number, TrialState.PRUNED, None)
        elif status in ("finished", "diverged"):
            numbers = [key for key, value in metrics.items() if isinstance(value, int | float)]
            for each in self.objectives:
                validate_objective(each.name, numbers)
            values = [each.reached(run_dir) for each in self.objectives]
            finite = [value for value in values if value is not None and isfinite(value)]
            if len(finite) == len(values):
                tell(self.study, number, TrialState.COMPLETE, finite)
            else:
                tell(self.study, number, TrialState.FAIL, None)
        else:
            # Another process runs it, or it was interrupted: it stays as it is.
            return
        self.locks.pop(number).release()


def _varied(trial: FrozenTrial) -> list[str]:
    return [f"{key}={value}" for key, value in trial.params.items()]


def _job_name(trial: FrozenTrial) -> str:
    return job_directory(trial.number, ",".join(_varied(trial)))


def best_trials(config: DictConfig) -> list[str]:
    """Lines that name the best trials, each followed by the command that runs it alone.

    They are one, or of several objectives the Pareto front.
    """
    study = optuna.load_study(study_name=NAME, storage=config.sweep.storage)
    _, fixed = read_space(overrides_of(config))
    fixed = [word for word in fixed if not word.startswith(("sweep=", "sweep.", "sweep/"))]
    found = study.best_trials if len(study.directions) > 1 else study.best_trials[:1]
    lines = []
    for trial in found:
        values = ", ".join(
            f"{each.name} {value:.6g}"
            for each, value in zip(objectives(config), trial.values, strict=True)
        )
        command = invocation().command("train.py", *fixed, *_varied(trial))
        lines += [f"best: job {trial.number + 1}, {values}", f"  {command}"]
    return lines
