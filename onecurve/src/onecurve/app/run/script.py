"""What surrounds a script's function in every rank: how it ends, and what is written down."""

import signal
import traceback
from collections.abc import Callable
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from ... import machine
from ...checkpoint.storage import LocalFiles
from ...errors import UserError, of_the_project, user_error_behind
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
from . import record
from .bookkeeping import Results
from .closing import show_metrics, show_training
from .instantiate import LIGHTNING, describe_error, trainer_errors
from .monitor import missing_metric
from .run import Run
from .trainer import close_loggers, final_facts


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
        if results.fitted is not None:
            cast(LocalFiles, results.fitted.strategy.checkpoint_io).raise_if_nothing_saved()
        best = run.best
    except EndedEarly as early:
        status, best = early.status, run.best
    except Stopped as stopped:
        return {STOPPED: stopped.number, "global_step": stopped.step}
    except SystemExit as end:
        if (stopped_by := _signal_behind(end, results)) is not None:
            raise RankFailed(f"stopped by {stopped_by.name}", 128 + stopped_by) from None
        # `sys.exit()` in a script ends it as `return` does.
        if isinstance(end.code, int) and end.code:
            words = f"the script ended itself by sys.exit({end.code})"
            return {DIFFERS: words, STATUS: end.code}
        if end.code:
            raise RankFailed(str(end.code)) from None
        best = run.best
    except Exception as error:
        if results.trainer is not None and (
            refusal := missing_metric(error, results.trainer, run.cfg)
        ):
            raise refusal from None
        script = function.__code__.co_filename
        if not _has_trained(results) and (line := _rejected_before_training(error, script)):
            raise UserError(line) from error
        raise
    finally:
        close_loggers(run._loggers)
    metrics = dict(results.metrics)
    if returned is not None:
        metrics[RETURNED] = returned
    if machine.is_first_rank():
        _write(run, metrics, status, best)
    return metrics


def _write(run: Run, metrics: Metrics, status: str, best: str | None) -> None:
    results = run._results
    facts: dict[str, Any] = {}
    if results.trainer is not None:
        facts |= {"strategy": run.cfg.strategy.name, "world_size": results.trainer.world_size}
    if "checkpoint" in run.cfg and isinstance(run.cfg.checkpoint, str):
        facts["checkpoint"] = str(run.cfg.checkpoint)
    if results.fits:
        speed = round(results.samples / results.seconds, 1) if results.seconds else 0.0
        facts |= {"global_step": results.steps, "seconds": round(results.seconds, 3)}
        facts = final_facts(cast(Any, results.fitted)) | facts | {"samples_per_second": speed}
    is_early = results.end is not None and results.end.is_early and status == "finished"
    why = {"stopped": results.end.reason} if results.end is not None and is_early else {}
    record.finished(run.dir, metrics | facts | results.facts | why, status)
    if not results.fits:
        if metrics:
            show_metrics(metrics, run.dir)
        return
    # A sweep prints a line for each job.
    if run._is_job:
        return
    notes = [f"Stopped early by {reason}" for reason in why.values()] + results.notes
    if name := diverged(metrics):
        notes.append(f"{name} is {metrics[name]}: +callbacks=nan_guard finds where it begins")
    show_training(metrics, facts, run.dir, best if results.has_test else None, notes)


def _number(returned: Any) -> float | None:
    """What a function returned, if it is a number, which a sweep compares."""
    if isinstance(returned, Tensor) and returned.numel() == 1:
        return float(returned)
    is_number = isinstance(returned, int | float) and not isinstance(returned, bool)
    return float(returned) if is_number else None


def _has_trained(results: Results) -> bool:
    strategy = None if results.trainer is None else results.trainer.strategy
    return bool(results.samples or getattr(strategy, "samples_seen", 0))


def _signal_behind(end: SystemExit, results: Results) -> signal.Signals | None:
    """The signal after which Lightning has ended a fit: SIGTERM, or Ctrl-C."""
    if isinstance(end, SIGTERMException):
        return signal.SIGTERM
    is_interrupted = results.trainer is not None and results.trainer.interrupted
    return signal.SIGINT if is_interrupted else None


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
