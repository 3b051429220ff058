"""`sweep=optuna`: trials instead of a grid, each a job of its own.

The released plugin, hydra-optuna-sweeper 1.3, asks for Optuna 2, whose SQLite storage fails with
today's SQLAlchemy. Nor has it a place for what a search must do here: go on with the trials that a
kill left behind, let a second process join in, and end bad trials from inside training.
"""

from math import isfinite
from pathlib import Path
from typing import IO

import optuna
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from optuna.trial import FrozenTrial, TrialState

from ... import lock
from ...command.resolvers import job_directory
from ...errors import UserError
from ...run import hidden
from ...run.to_type import quoted, typed_here
from ..begin import of_sweeper, parse
from ..directory import COMPLETE, STOPPED
from ..objective import metrics, objectives, read, refuse_unknown
from .space import read_space
from .study import NAME, ask, has_ended, most_trials, open_study, tell


class Search:
    """Asks a study for trials, runs them, and tells it how they ended.

    Args:
        config: What Hydra composed for the whole sweep.
        hydra_context: How Hydra composes the configuration of a job.
        task_function: What runs a job.
    """

    def __init__(
        self, config: DictConfig, hydra_context: HydraContext, task_function: TaskFunction
    ) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.directory = Path(str(config.hydra.sweep.dir))
        self.mine: dict[int, IO[str]] = {}

    def run(self, arguments: list[str]) -> None:
        """Run trials until there are as many as asked for.

        Args:
            arguments: The overrides that were typed.

        Raises:
            UserError: If no trial has the objective.
        """
        self.space, self.fixed = read_space(parse([*of_sweeper(self.config), *arguments]))
        search = self.config.sweep
        self.objectives = objectives(search)
        pruner = search.pruner if len(self.objectives) == 1 else None
        directions = [mode for _, mode in self.objectives]
        # Two processes at once would both make the tables.
        with lock.waiting_for(self.directory / ".locks" / "study"):
            self.study = open_study(search.storage, directions, pruner)
        self.most = most_trials(search, self.space)
        while not (self.directory / STOPPED).exists():
            batch = [trial for _ in range(search.parallel) if (trial := self._take())]
            if not batch:
                break
            jobs = [self._overrides(trial) for trial in batch]
            self.launcher.launch(jobs, initial_job_idx=batch[0].number)
            for trial in batch:
                self._tell(trial)
        if has_ended(self.study, self.most):
            (self.directory / COMPLETE).touch()

    def _take(self) -> FrozenTrial | None:
        """A trial that nobody works on: one left behind, or a new one; None if there is none."""
        with lock.waiting_for(self.directory / ".locks" / "study"):
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == TrialState.RUNNING and self._lock(trial.number):
                    return trial
            if len(trials) >= self.most:
                return None
            trial = ask(self.study, self.config.sweep, self.space)
            self._lock(trial.number)
            return trial

    def _lock(self, number: int) -> bool:
        if number in self.mine:
            return False
        held = lock.take(self.directory / ".locks" / f"trial-{number + 1}")
        if held:
            self.mine[number] = held
        return held is not None

    def _overrides(self, trial: FrozenTrial) -> list[str]:
        own = [
            f"sweep.trial={trial.number}",
            f"sweep.trials={self.most}",
            f"hydra.sweep.subdir={quoted(job_name(trial))}",
        ]
        return [*self.fixed, *overrides_of(trial), *own]

    def _tell(self, trial: FrozenTrial) -> None:
        run_dir, number = self.directory / job_name(trial), trial.number
        found = metrics(run_dir)
        status, error = found.get("status"), str(found.get("error", ""))
        which = self.config.sweep.value
        if status == "failed":
            tell(self.study, number, TrialState.FAIL, None)
            if error.startswith(("sweep.objective=", "monitor=", "mode=")):
                raise UserError(error)
        elif status == "pruned":
            tell(self.study, number, TrialState.PRUNED, None)
        elif status in ("finished", "diverged"):
            numbers = [key for key, value in found.items() if isinstance(value, int | float)]
            for name, _ in self.objectives:
                refuse_unknown(name, numbers)
            values = [read(run_dir, name, mode, which) for name, mode in self.objectives]
            reached = [value for value in values if value is not None and isfinite(value)]
            if len(reached) == len(values):
                tell(self.study, number, TrialState.COMPLETE, reached)
            else:
                tell(self.study, number, TrialState.FAIL, None)
        else:
            # Another process has it, or it was stopped: it is left as it is.
            return
        self.mine.pop(number).close()


def overrides_of(trial: FrozenTrial) -> list[str]:
    """What a trial tries, such as ["optimizer.lr=0.01"]."""
    return [f"{key}={value}" for key, value in trial.params.items()]


def job_name(trial: FrozenTrial) -> str:
    """The name of a trial's directory."""
    return job_directory(trial.number, ",".join(overrides_of(trial)))


def best(config: DictConfig) -> list[str]:
    """Lines that say what a search has found, and how to run it again."""
    study = optuna.load_study(study_name=NAME, storage=config.sweep.storage)
    _, fixed = read_space(parse([*of_sweeper(config), *hidden.typed(config.hydra.overrides.task)]))
    fixed = [word for word in fixed if not word.startswith(("sweep=", "sweep.", "sweep/"))]
    # Of one objective the first of the best; of several those that no other beats.
    found = study.best_trials if len(study.directions) > 1 else study.best_trials[:1]
    lines = []
    for trial in found:
        reached = ", ".join(
            f"{name} {value:.6g}"
            for (name, _), value in zip(objectives(config.sweep), trial.values, strict=True)
        )
        command = typed_here().command("train.py", *fixed, *overrides_of(trial))
        lines += [f"best: job {trial.number + 1}, {reached}", f"  {command}"]
    return lines
