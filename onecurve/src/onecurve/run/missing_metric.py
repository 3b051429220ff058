"""Says in one line that nothing logs the metric by which checkpoints and schedulers compare."""

import re
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from ..errors import UserError, say

# What ModelCheckpoint says; what EarlyStopping and schedulers say.
MISSING = re.compile(
    r"\(monitor='?(.*?)'?\)`? could not find|conditioned on metric `?(\S+?)`? which is not"
)


class MissingMetric(Callback):
    """Speaks of a metric that is not there before the first epoch, and saves what was trained.

    Only the end of an epoch shows for certain that nothing logs it: a task may log it in an epoch
    and not in the batches of validation that come before training.

    Args:
        file: Where to save.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Of a metric of validation it shows now, if the others are there."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        logged = set(trainer.callback_metrics)
        groups = {name.partition("/")[0] for name in logged if "/" in name}
        for name in dict.fromkeys(str(getattr(each, "monitor", "")) for each in callbacks):
            if trainer.is_global_zero and name not in logged and name.partition("/")[0] in groups:
                say(f"{_line(name, logged)}; the first epoch will show whether it comes")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The epoch that showed it is not lost."""
        if trainer.training and trainer.global_step and MISSING.search(str(exception)):
            trainer.save_checkpoint(self.file)


def missing_metric(error: Exception, trainer: Trainer) -> UserError | None:
    """The line for an error of Lightning's about a metric that is not there; None for others."""
    found = MISSING.search(str(error))
    if found is None:
        return None
    name, logged = found[1] or found[2], set(trainer.callback_metrics)
    return UserError(
        f"{_line(name, logged)}; what was trained is saved: resume=last monitor={_example(logged)}"
    )


def _line(name: str, logged: set[str]) -> str:
    names = ", ".join(sorted(key for key in logged if "/" in key and key != name))
    return (
        f"monitor={name}: nothing logs a metric of that name; this task logs {names or 'none'}; "
        f"such as monitor={_example(logged)}"
    )


def _example(logged: set[str]) -> str:
    return next((key for key in sorted(logged) if key.startswith("val/")), "val/loss")
