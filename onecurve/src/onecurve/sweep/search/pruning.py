"""Tells the study of a search how far a trial is, and ends it where it is not worth going on."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ...run.outcome import EndedEarly
from ..objective import refuse_unknown
from .study import should_prune


class Pruning(Callback):
    """Reports the objective after every validation. The first rank asks; all ranks end together.

    One of several objectives, or one that only the end of a run has, as the test set's, is not
    reported.

    Args:
        search: The group `sweep` of a trial's configuration.
    """

    def __init__(self, search: Any) -> None:
        self.search = search
        self.validations = 0

    def state_dict(self) -> dict[str, Any]:
        """A trial that is gone on with counts on."""
        return {"validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = state_dict["validations"]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report and ask.

        Raises:
            EndedEarly: On all ranks, with the status "pruned".
            UserError: If nothing logs the objective.
        """
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        self.validations += 1
        name = self.search.objective
        several = not isinstance(name, str)
        if several or "/" not in name or name.startswith("test/"):
            return
        metrics = trainer.callback_metrics
        refuse_unknown(name, list(metrics))
        prune = False
        if trainer.is_global_zero:
            search, value = self.search, float(metrics[name])
            prune = should_prune(
                search.storage, search.trial, self.validations, value, search.pruner
            )
        if trainer.strategy.broadcast(prune):
            raise EndedEarly("pruned")
