"""Reports a trial's objective to the study of a search, and ends a trial that is pruned."""

from typing import Any

import optuna
from hydra.utils import instantiate
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ...launch.context import EndedEarly
from .results import validate_objective
from .search import NAME, storage


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
        study = optuna.load_study(
            study_name=NAME,
            storage=storage(self.search.storage),
            pruner=instantiate(self.search.pruner),
        )
        frozen = study.get_trials(deepcopy=False)[self.search.trial]
        trial = optuna.Trial(study, frozen._trial_id)
        trial.report(value, self.validations)
        return trial.should_prune()
