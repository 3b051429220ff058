"""What one process of train.py does, from top to bottom."""

import time
from functools import partial
from pathlib import Path
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, seed_everything
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig, OmegaConf

from ..callbacks.device_stats import PeakMemory
from ..callbacks.garbage import GarbageCollection
from ..callbacks.progress import steps_done
from ..checkpoint.format import read_checkpoint, reject_incomplete_state, reject_other_network
from ..checkpoint.resume_state import ResumeState, resume_loggers
from ..checkpoint.storage import LocalFiles
from ..errors import UserError, user_error_behind
from ..strategies.strategy import OneCurve
from . import record, redaction
from .context import Attempt, RunContext
from .evaluate import reject_without_test
from .instantiate import build, build_task, describe_error, trainer_errors
from .monitor import MonitoredMetrics, missing_metric, no_validation
from .outcome import STOPPED, EndedEarly, RankFailed, Stopped, diverged
from .stop import StopOnSignal, end_of_training
from .summary import show_training
from .trainer import (
    LogConfiguration,
    best_checkpoint,
    build_trainer,
    close_loggers,
    earlier_steps,
    final_facts,
    task_metrics,
)


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Train, test the best weights, record; returns the final metrics, the same on every rank."""
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    seed_everything(cfg.seed, workers=True, verbose=False)

    resume = _checkpoint_to_resume(cfg, context.attempt)
    checkpoint = read_checkpoint(resume, whole=False, is_checked=True) if resume else None
    if checkpoint:
        reject_incomplete_state(checkpoint, str(resume))
    # After a restart a node may have a copy of it in another place.
    is_restart = context.attempt.checkpoint is not None
    in_place = is_restart or (resume is not None and resume.is_relative_to(run_dir))

    data = build("data", cfg.data, LightningDataModule)
    task = build_task(cfg)
    if cfg.test:
        reject_without_test(task, data, ", or use test=false")
    stored = redaction.redacted(config)
    resume_state = ResumeState(
        stored,
        logs=checkpoint["logs"] if checkpoint and in_place else None,
        layout=checkpoint.get("layout") if checkpoint else None,
        redact=partial(redaction.redact_hyperparameters, config=config),
    )
    last = run_dir / "checkpoints" / "last.ckpt"
    own: list[Callback] = [PeakMemory(), resume_state, MonitoredMetrics(last)]
    own += [StopOnSignal(last, context.listening), LogConfiguration(stored)]
    if cfg.get("gc_every_n_steps"):
        own.append(GarbageCollection(cfg.gc_every_n_steps))
    trainer = build_trainer(cfg, run_dir, own, logs_metrics=True)
    strategy = cast(OneCurve, trainer.strategy)
    checkpoint_io = cast(LocalFiles, strategy.checkpoint_io)
    if checkpoint:
        reject_other_network(task, checkpoint, str(resume))
        trainer.earlier_steps = earlier_steps(checkpoint, stored)
        if in_place:
            resume_loggers(trainer.loggers, checkpoint["logs"])
        # Lightning reads it once more. It is large, and not kept here.
        checkpoint_io.preload(checkpoint, cast(Path, resume))
        del checkpoint

    status = "finished"
    try:
        started = time.perf_counter()
        try:
            with trainer_errors():
                trainer.fit(task, datamodule=data, ckpt_path=resume)
        except EndedEarly as early:
            status = early.status
        seconds = time.perf_counter() - started
        samples = strategy.samples_seen
        metrics = task_metrics(trainer)

        ended = end_of_training(trainer, _early_stopping(cfg))
        unvalidated = no_validation(trainer) if samples else None
        if resume is not None and not samples and trainer.is_global_zero:
            print(
                f"resume: the run is over: {ended.reason}; to train further add {ended.to_continue}"
            )
        best = best_checkpoint(trainer)
        if cfg.test and status == "finished":
            with trainer_errors():
                trainer.test(task, datamodule=data, ckpt_path=best, verbose=False)
            metrics |= task_metrics(trainer)
        checkpoint_io.raise_if_nothing_saved()
    except Stopped as stopped:
        return {STOPPED: stopped.number, "global_step": stopped.step}
    except SystemExit as end:
        # So Lightning ends after SIGTERM and after Ctrl-C.
        if isinstance(end, SIGTERMException):
            raise RankFailed("stopped by SIGTERM", status=143) from None
        raise RankFailed("stopped by SIGINT", status=130) from None
    except Exception as error:
        if refusal := missing_metric(error, trainer):
            raise refusal from None
        if not strategy.samples_seen and (line := _rejected_before_training(error)):
            raise UserError(line) from error
        raise
    finally:
        checkpoint_io.finish_mirror()
        close_loggers(trainer)

    facts = {
        "strategy": cfg.strategy.name,
        "world_size": trainer.world_size,
        "global_step": steps_done(trainer),
        "seconds": round(seconds, 3),
        "samples_per_second": round(samples / seconds, 1),
    }
    facts = final_facts(trainer) | facts
    if trainer.is_global_zero:
        is_early = ended.is_early and status == "finished"
        why = {"stopped": ended.reason} if is_early else {}
        record.finished(run_dir, metrics | facts | why, status)
        # A sweep prints a line for each job.
        if OmegaConf.select(cfg, "sweep.job") is None:
            notes = [f"Stopped early by {ended.reason}"] if is_early else []
            notes += [unvalidated] if unvalidated else []
            if name := diverged(metrics):
                notes.append(
                    f"{name} is {metrics[name]}: +callbacks=nan_guard finds where it begins"
                )
            show_training(metrics, facts, run_dir, best, notes)
    return metrics


def _checkpoint_to_resume(cfg: DictConfig, attempt: Attempt) -> Path | None:
    """The file to resume from: after a restart of the ranks the newest of this run itself."""
    number, checkpoint = attempt
    if number:
        where = f"from {Path(checkpoint).name}" if checkpoint else "from the start"
        most = cfg.launch.max_restarts
        # torchrun has its own limit.
        start = f"restart {number} of {most}" if number <= most else "started again"
        print(f"{start}: the ranks continue {where}")
    if checkpoint:
        return Path(checkpoint)
    return Path(cfg.resume) if cfg.resume is not None else None


def _rejected_before_training(error: Exception) -> str | None:
    """The line for settings that Lightning rejects, or for a place that cannot be written to."""
    if isinstance(error, MisconfigurationException):
        return describe_error(error)
    if isinstance(error, OSError) and error.filename and not user_error_behind(error):
        return f"{error.filename}: {error.strerror}; name a place that can be written to"
    return None


def _early_stopping(cfg: DictConfig) -> dict[str, str]:
    """The name of the callback that stops early, by its monitored metric."""
    callbacks = (cfg.get("callbacks") or {}).items()
    return {
        str(entry.get("monitor")): str(name)
        for name, entry in callbacks
        if entry and str(entry.get("_target_")).endswith("EarlyStopping")
    }
