"""A metric that callbacks or schedules monitor and nothing logs: told before the first epoch.

The validation before training (`trainer.num_sanity_val_steps`) shows what validation logs. Where
that cannot tell, the end of the first epoch does, which is saved.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from ...compat.of_lightning import callbacks_of
from ...errors import UserError, say
from ...spelling import nearest
from ..metric_names import better, of_validation, without_stage
from .interpolation import dotted
from .trainer import logged_by_task

# The messages of ModelCheckpoint, and of EarlyStopping and schedulers.
MISSING = re.compile(
    r"\(monitor='?(.*?)'?\)`? could not find|conditioned on metric `?(\S+?)`? which is not"
)
OFTEN = "trainer.check_val_every_n_epoch=1 trainer.val_check_interval=1.0"


class Wait:
    """A metric that something monitors, and the shortest key that names it; None if code does.

    `source` says where code names it: a class, and the method for a schedule.
    """

    def __init__(self, metric: str, cfg: DictConfig, source: str = "code") -> None:
        self.metric = metric
        keys = [key for key, value in dotted(OmegaConf.to_container(cfg)) if value == metric]
        monitors = [key for key in keys if key.rpartition(".")[2] == "monitor"]
        self.key = min(monitors, key=len, default=None)
        # How an error line begins.
        self.named = f"{self.key}={metric}" if self.key else f"monitor={metric!r} in {source}"

    def instead(self, metric: str) -> str:
        """What to type, or to write, to monitor another metric."""
        if self.key is None:
            return f"monitor={metric!r} there"
        mode = better(metric)
        other = f"{self.key}={metric}"
        return f"{other} {self.key.removesuffix('monitor')}mode={mode}" if mode else other


def waits(trainer: Trainer, cfg: DictConfig) -> list[Wait]:
    """The metrics that callbacks and schedules monitor in a fit."""
    sources: dict[str, str] = {}
    for callback in callbacks_of(trainer, Callback):
        metric = getattr(callback, "monitor", None)
        if isinstance(metric, str):
            sources.setdefault(metric, type(callback).__name__)
    task = type(trainer.lightning_module).__name__
    for each in trainer.lr_scheduler_configs:
        if each.reduce_on_plateau and each.strict and isinstance(each.monitor, str):
            schedule = type(each.scheduler).__name__
            sources.setdefault(each.monitor, f"{schedule} of {task}.configure_optimizers")
    return [Wait(metric, cfg, source) for metric, source in sources.items()]


class MonitoredMetrics(Callback):
    """Ends a run before its first epoch if validation logs a monitored metric by another name.

    Any other may be logged elsewhere, or by a whole validation alone: the first epoch decides.
    """

    def __init__(self, cfg: DictConfig, file: Path) -> None:
        self.cfg = cfg
        self.file = file

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let a ReduceLROnPlateau on a validation metric step only in epochs with a validation."""
        for each in trainer.lr_scheduler_configs:
            is_usual = each.interval == "epoch" and each.frequency == 1
            if each.reduce_on_plateau and is_usual and str(each.monitor).startswith("val"):
                each.frequency = trainer.check_val_every_n_epoch or 1
        told = None if trainer.enable_validation else no_validation(trainer, self.cfg)
        if told and trainer.is_global_zero:
            say(told)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reject a metric of validation that was logged by another name."""
        logged = logged_by_task(trainer)
        for wait in waits(trainer, self.cfg):
            is_known = wait.metric in logged or not of_validation(wait.metric)
            if not is_known and _same(wait.metric, logged):
                raise UserError(
                    f"{line(wait, trainer)}; or, if only a whole validation logs it, "
                    "trainer.num_sanity_val_steps=0"
                )

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save the epoch that showed it."""
        if trainer.training and trainer.global_step and MISSING.search(str(exception)):
            trainer.save_checkpoint(self.file)


def missing_metric(error: Exception, trainer: Trainer, cfg: DictConfig) -> UserError | None:
    """The line for Lightning's error about a monitored metric that is missing; None for others."""
    match = MISSING.search(str(error))
    if match is None:
        return None
    name = match[1] or match[2]
    saved = "what was trained is saved: resume=last"
    if of_validation(name) and trainer.enable_validation and (why := no_validation(trainer, cfg)):
        return UserError(f"{why}; {saved} {OFTEN}")
    monitored = {wait.metric: wait for wait in waits(trainer, cfg)}
    wait = monitored.get(name) or Wait(name, cfg)
    logged = logged_by_task(trainer)
    if wait.key is not None and logged:
        saved += f" {wait.instead(_proposed(name, logged))}"
    return UserError(f"{line(wait, trainer)}; {saved}")


def line(wait: Wait, trainer: Trainer) -> str:
    """That nothing logs a metric, what is logged, and what to do."""
    task, logged = type(trainer.lightning_module).__name__, logged_by_task(trainer)
    told = f"{wait.named}: nothing logs a metric of that name; {task} logs"
    if logged:
        verb, other = "write" if wait.key is None else "use", _proposed(wait.metric, logged)
        return f"{told} {', '.join(sorted(logged))}; {verb} {wait.instead(other)}"
    where = "validation_step" if of_validation(wait.metric) else "training_step"
    other = ", or use monitor=null" if wait.key == "monitor" else ""
    return f"{told} nothing; write self.log({wait.metric!r}, ...) in {where}{other}"


def _proposed(metric: str, logged: Iterable[str]) -> str:
    """The logged metric that is meant: by a similar name, or a well-known one of its stage."""
    names = sorted(logged)
    alike = [each for each in names if of_validation(each) == of_validation(metric)] or names
    return _same(metric, alike) or next(filter(better, alike), alike[0])


def _same(metric: str, logged: Iterable[str]) -> str | None:
    """The logged metric whose name is as good as the same: val_acc for val/acc; None if none is."""
    names = {without_stage(each): each for each in sorted(logged)}
    close = nearest(without_stage(metric), list(names))
    return names[close] if close else None


def no_validation(trainer: Trainer, cfg: DictConfig) -> str | None:
    """The line if a metric of validation is monitored, and there was none; None otherwise."""
    waiting = next((each for each in waits(trainer, cfg) if of_validation(each.metric)), None)
    if waiting is None or trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.ready:
        return None
    if not trainer.enable_validation:
        return (
            f"{waiting.named}: there is no validation (it needs validation_step, val_dataloader "
            "and trainer.limit_val_batches), so no weights are the best; name a metric of "
            "training, or use monitor=null"
        )
    every, interval = trainer.check_val_every_n_epoch, trainer.val_check_interval
    use, batches = OFTEN, trainer.fit_loop.epoch_loop.batch_progress.current.ready
    if (every, interval) == (1, 1.0):  # the run ended in its first epoch
        use = f"trainer.val_check_interval={batches}, or train longer"
    return (
        f"{waiting.named}: there was no validation yet (trainer.check_val_every_n_epoch="
        f"{every or 'null'}, trainer.val_check_interval={interval}), so no weights are the best; "
        f"use {use}"
    )
