"""Reports a monitored metric that nothing logs, in one line."""

import re
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from ..compat.of_lightning import callbacks_of
from ..errors import UserError, say, to_compare_by

# The messages of ModelCheckpoint, and of EarlyStopping and schedulers.
MISSING = re.compile(
    r"\(monitor='?(.*?)'?\)`? could not find|conditioned on metric `?(\S+?)`? which is not"
)


class MonitoredMetrics(Callback):
    """Warns of a missing monitored metric before the first epoch, and saves if one ends the run.

    Only the end of an epoch shows for certain that nothing logs it: a task may log it in an epoch
    and not in the sanity check before training.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.has_validated = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let a ReduceLROnPlateau on a validation metric step only in epochs with a validation."""
        epochs = trainer.check_val_every_n_epoch or 1
        for each in trainer.lr_scheduler_configs:
            is_usual = each.interval == "epoch" and each.frequency == 1
            if each.reduce_on_plateau and is_usual and str(each.monitor).startswith("val"):
                each.frequency = epochs

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.has_validated |= not trainer.sanity_checking

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the sanity check logged other validation metrics, but not the monitored one."""
        logged = set(trainer.callback_metrics)
        groups = {name.partition("/")[0] for name in logged if "/" in name}
        monitors = [getattr(each, "monitor", "") for each in callbacks_of(trainer, Callback)]
        for name in dict.fromkeys(map(str, monitors)):
            if trainer.is_global_zero and name not in logged and name.partition("/")[0] in groups:
                say(f"{_line(name, logged)}; the first epoch will show whether it comes")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save the epoch that showed it."""
        if trainer.training and trainer.global_step and MISSING.search(str(exception)):
            trainer.save_checkpoint(self.file)


def missing_metric(error: Exception, trainer: Trainer) -> UserError | None:
    """The line for Lightning's error about a monitored metric that is missing; None for others."""
    found = MISSING.search(str(error))
    if found is None:
        return None
    name, logged = found[1] or found[2], set(trainer.callback_metrics)
    if trainer.enable_validation and not validated(trainer) and not name.startswith("train"):
        often = "trainer.check_val_every_n_epoch=1 trainer.val_check_interval=1.0"
        return UserError(
            f"monitor={name}: is needed before the first validation ({_settings(trainer)}); use "
            f"{often}, or monitor=train/loss mode=min; what was trained is saved: resume=last "
            f"{often}"
        )
    return UserError(
        f"{_line(name, logged)}; what was trained is saved: resume=last {to_compare_by(logged)}"
    )


def validated(trainer: Trainer) -> bool:
    """Whether there was a validation since training began or was resumed."""
    return any(each.has_validated for each in callbacks_of(trainer, MonitoredMetrics))


def no_validation(trainer: Trainer) -> str | None:
    """The line for a run with a validation loader that was never validated; None for others."""
    if not trainer.enable_validation or validated(trainer):
        return None
    return (
        f"There was no validation ({_settings(trainer)}): no weights are the best by a metric of it"
    )


def _line(name: str, logged: set[str]) -> str:
    names = ", ".join(sorted(key for key in logged if "/" in key and key != name))
    return (
        f"monitor={name}: nothing logs a metric of that name; this task logs {names or 'none'}; "
        f"such as {to_compare_by(logged)}"
    )


def _settings(trainer: Trainer) -> str:
    epochs, interval = trainer.check_val_every_n_epoch, trainer.val_check_interval
    return (
        f"trainer.check_val_every_n_epoch={epochs or 'null'}, trainer.val_check_interval={interval}"
    )
