"""What surrounds a script's function in every rank: what it came to, and what is written down."""

import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import OmegaConf
from torch import Tensor

from ... import machine
from ...checkpoint.format import reject_other_network
from ...compat.of_lightning import callbacks_of
from ...errors import UserError, interrupted, of_the_project, user_error_behind
from ...launch.context import (
    DIFFERS,
    RETURNED,
    STATUS,
    STOPPED,
    EndedEarly,
    Metrics,
    RankFailed,
    RunContext,
    Stopped,
    diverged,
)
from ...optim.schedulers import steps_done
from ...strategies.strategy import OneCurve
from . import record
from .closing import show_metrics, show_training
from .instantiate import LIGHTNING, describe_error, trainer_errors
from .monitor import missing_metric, no_validation
from .protocols import HasFinalFacts
from .run import FIT, Run
from .stop import EndOfTraining, end_of_training
from .trainer import close_loggers, logged_by_task


@dataclass
class Results:
    """What a run came to so far, which is written down at the end."""

    # The last metrics of the task by name, of all fits and tests, and what the script recorded.
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    # The fits that began, how long they took, and the samples that they trained on.
    fits: int = 0
    seconds: float = 0.0
    samples: int = 0
    # Of the last fit: its steps, its Trainer, why it ended, and whether its task has a test.
    steps: int = 0
    fitted: Trainer | None = None
    end: EndOfTraining | None = None
    has_test: bool = False
    trainer: Trainer | None = None  # the one that was used last

    def of_fits(self) -> dict[str, float]:
        """The facts about all fits, for metrics.json."""
        facts: dict[str, float] = {}
        for callback in callbacks_of(self.fitted, HasFinalFacts) if self.fitted else ():
            facts |= callback.final_facts
        speed = round(self.samples / self.seconds, 1) if self.seconds else 0.0
        done = {"global_step": self.steps, "seconds": round(self.seconds, 3)}
        return facts | done | {"samples_per_second": speed}


class Bookkeeping(Callback):
    """Validates what a fit begins with, logs the configuration, and notes what it came to.

    The first Trainer of a run that is resumed gets its checkpoint, without tensors.
    """

    def __init__(self, run: Run, checkpoint: dict[str, Any] | None) -> None:
        self.run = run
        self.results = run._results
        self.checkpoint = checkpoint
        self._started = 0.0
        self._samples_before = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reject what would fail once training has ended, or not fail at all."""
        self.results.trainer = trainer
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if self.run.cfg.get("test"):
            reject_without_test(pl_module)
            reject_without_test(trainer.datamodule)  # type: ignore[attr-defined]
        if self.checkpoint is not None and getattr(trainer, "resumes", False):
            reject_other_network(pl_module, self.checkpoint, str(self.run.resume))
        self.checkpoint = None
        self.results.fits += 1
        self.results.fitted = trainer
        self._started = time.perf_counter()
        self._samples_before = cast(OneCurve, trainer.strategy).samples_seen

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the configuration, without secrets, to trackers such as Weights & Biases."""
        for logger in trainer.loggers:
            # These write into the run directory, where config.yaml is.
            if not isinstance(logger, CSVLogger | TensorBoardLogger):
                logger.log_hyperparams(dict(self.run._stored))

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[FIT] = self.results.fits

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Reject a checkpoint of another fit of the script: its progress is not this one's."""
        saved, now = checkpoint.get(FIT, 1), self.results.fits
        if trainer.state.fn == TrainerFn.FITTING and saved != now:
            raise UserError(
                f"resume: {trainer.ckpt_path} was saved by fit {saved} of the script, and this is "
                f"fit {now}; let the script resume that one: `if not run.is_over({now}):` before "
                "this fit"
            )

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, EndedEarly):
            self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Note what a fit, or a test, came to."""
        results = self.results
        results.metrics |= {name: each.item() for name, each in logged_by_task(trainer).items()}
        if trainer.state.fn != TrainerFn.FITTING:
            return
        samples = cast(OneCurve, trainer.strategy).samples_seen - self._samples_before
        results.seconds += time.perf_counter() - self._started
        results.samples += samples
        results.steps = steps_done(trainer)
        results.has_test = is_overridden("test_step", pl_module)
        results.end = end = end_of_training(trainer)
        if trainer.ckpt_path is not None and not samples and trainer.is_global_zero:
            print(f"resume: the run is over: {end.reason}; to train further add {end.to_continue}")


def reject_without_test(task: Any) -> None:
    """Reject a task or data that Lightning would reject once the test begins, after the training.

    Loaders that a script passes one by one are its own matter.
    """
    needed = {LightningModule: "test_step", LightningDataModule: "test_dataloader"}
    for kind, name in needed.items():
        if isinstance(task, kind) and not is_overridden(name, task):
            raise UserError(f"{type(task).__name__} has no {name}; write one, or use test=false")


def in_rank(
    function: Callable[[Run], Any], config: dict[str, Any], context: RunContext
) -> dict[str, Any]:
    """Call a script's function in a rank, and record the run once it has returned.

    Returns:
        The final metrics, the same on every rank, and under `RETURNED` the number that the function
        returned, if it did; or the signal that stopped training, or the line of a script that ended
        itself.

    Raises:
        UserError: If the run was rejected before it trained.
        RankFailed: If it was stopped by a signal outside of a fit.
    """
    run = Run(config, context)
    results = run._results
    status = "finished"
    returned: float | None = None
    try:
        with trainer_errors():
            returned = _number(function(run))
    except EndedEarly as early:
        status = early.status
    except Stopped as stopped:
        return {STOPPED: stopped.number, "global_step": stopped.step}
    except SystemExit as end:
        _raise_if_signal(end)
        # `sys.exit()` in a script ends it as `return` does.
        if isinstance(end.code, int) and end.code:
            words = f"the script ended itself by sys.exit({end.code})"
            return {DIFFERS: words, STATUS: end.code}
        if end.code:
            raise RankFailed(str(end.code)) from None
    except Exception as error:
        trainer = results.trainer
        if trainer is not None and (refusal := missing_metric(error, trainer, run.cfg)):
            raise refusal from None
        has_trained = results.samples or getattr(trainer and trainer.strategy, "samples_seen", 0)
        script = function.__code__.co_filename
        if not has_trained and (line := _rejected_before_training(error, script)):
            raise UserError(line) from error
        raise
    finally:
        close_loggers(run._loggers)
    best = run.best
    metrics = dict(results.metrics)
    if returned is not None:
        metrics[RETURNED] = returned
    if machine.is_first_rank():
        _write(run, metrics, status, best)
    return metrics


def _write(run: Run, metrics: Metrics, status: str, best: str | None) -> None:
    """Write metrics.json, and print the table at the end."""
    results, end = run._results, run._results.end
    facts: dict[str, Any] = {}
    if results.trainer is not None:
        facts |= {"strategy": run.cfg.strategy.name, "world_size": results.trainer.world_size}
    if isinstance(run.cfg.get("checkpoint"), str):
        facts["checkpoint"] = run.cfg.checkpoint
    if results.fitted is not None:
        facts |= results.of_fits()
    stopped = end.reason if end is not None and end.is_early and status == "finished" else None
    why = {"stopped": stopped} if stopped else {}
    record.finished(run.dir, metrics | facts | results.facts | why, status)
    if results.fitted is None:
        if metrics:
            show_metrics(metrics, run.dir)
        return
    # A sweep prints a line for each job.
    if OmegaConf.select(run.cfg, "sweep.job") is not None:
        return
    notes = [f"Stopped early by {stopped}"] if stopped else []
    if results.samples and (line := no_validation(results.fitted, run.cfg)):
        notes.append(line)
    if name := diverged(metrics):
        notes.append(f"{name} is {metrics[name]}: +callbacks=nan_guard finds where it begins")
    show_training(metrics, facts, run.dir, best if results.has_test else None, notes)


def _number(returned: Any) -> float | None:
    """What a function returned, if it is a number, which a sweep compares."""
    if isinstance(returned, Tensor) and returned.numel() == 1:
        return float(returned)
    is_number = isinstance(returned, int | float) and not isinstance(returned, bool)
    return float(returned) if is_number else None


def _raise_if_signal(end: SystemExit) -> None:
    """Lightning ends a fit by itself after SIGTERM, or Ctrl-C."""
    number = signal.SIGTERM if isinstance(end, SIGTERMException) else signal.SIGINT
    if number == signal.SIGTERM or interrupted(end):
        raise RankFailed(f"stopped by {number.name}", 128 + number) from None


def _rejected_before_training(error: Exception, script: str) -> str | None:
    """The line for settings that Lightning rejects, or for a place that cannot be written to."""
    if isinstance(error, MisconfigurationException):
        return describe_error(error)
    if not isinstance(error, OSError) or not error.filename or user_error_behind(error):
        return None
    # What the script, or code of the project that it calls, opens by itself keeps its traceback.
    files = [each.filename for each in traceback.extract_tb(error.__traceback__)]
    own = {each.tb_frame.f_code.co_filename for each in of_the_project(error)} - {script}
    if own or not any(file.startswith(LIGHTNING) for file in files):
        return None
    return f"{error.filename}: {error.strerror}; name a place that can be written to"
