"""What one process of a training run does, from top to bottom."""

import time
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, cast

from hydra.utils import get_class, instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    seed_everything,
)
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ..callbacks.garbage import GarbageCollection
from ..checkpoint.format import read_checkpoint, reject_incomplete_state, reject_other_network
from ..checkpoint.resume_state import ResumeState, resume_loggers
from ..checkpoint.storage import LocalFiles
from ..errors import UserError, user_error_behind
from ..strategies.strategy import OneCurve
from . import hidden, record
from .begun import begun_with_other_steps
from .building import building, called, checked, in_a_line, made
from .context import Attempt, RunContext
from .missing_metric import MissingMetric, missing_metric, no_validation
from .outcome import STOPPED, EndedEarly, RankFailed, Stopped
from .peak_memory import PeakMemory
from .stop_on_signal import StopOnSignal
from .summary import show_training
from .told_configuration import ToldConfiguration
from .trainer import best_checkpoint, build_trainer, close_loggers, final_facts
from .trainer_arguments import refusing_arguments
from .why_ended import why_ended


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Train, test the best weights, record.

    Args:
        config: The resolved training configuration.
        context: Where the run leaves its files, and which attempt of it this is.

    Returns:
        The final metrics by name, the same on every rank.
    """
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    seed_everything(cfg.seed, workers=True, verbose=False)

    resume = _checkpoint_to_resume(cfg, context.attempt)
    checkpoint = read_checkpoint(resume, whole=False, is_checked=True) if resume else None
    if checkpoint:
        reject_incomplete_state(checkpoint, str(resume))
    # After a restart a node may have a copy of it elsewhere.
    is_restart = context.attempt.checkpoint is not None
    in_place = is_restart or (resume is not None and resume.is_relative_to(run_dir))

    data = made("data", cfg.data, LightningDataModule)
    task = build_task(cfg)
    resume_state = ResumeState(
        hidden.stored(config),
        logs=checkpoint["logs"] if checkpoint and in_place else None,
        layout=checkpoint.get("layout") if checkpoint else None,
        redact=partial(hidden.hide_parameters, config=config),
    )
    last = run_dir / "checkpoints" / "last.ckpt"
    own: list[Callback] = [PeakMemory(), resume_state, MissingMetric(last)]
    own.append(StopOnSignal(last, context.listening))
    own.append(ToldConfiguration(hidden.stored(config)))
    if cfg.get("gc_every_n_steps"):
        own.append(GarbageCollection(cfg.gc_every_n_steps))
    trainer = build_trainer(cfg, run_dir, own, logs_metrics=True)
    if checkpoint:
        reject_other_network(task, checkpoint, str(resume))
        trainer.begun = begun_with_other_steps(checkpoint, hidden.stored(config))
        if in_place:
            resume_loggers(trainer.loggers, checkpoint["logs"])
        # Lightning asks for it once more; and it is not kept here, since it is large.
        cast(LocalFiles, trainer.strategy.checkpoint_io).preload(checkpoint, cast(Path, resume))
        del checkpoint

    status = "finished"
    try:
        started = time.perf_counter()
        try:
            with refusing_arguments():
                trainer.fit(task, datamodule=data, ckpt_path=resume)
        except EndedEarly as early:
            status = early.status
        seconds = time.perf_counter() - started
        samples = cast(OneCurve, trainer.strategy).samples_seen
        metrics = task_metrics(trainer)

        ended = why_ended(trainer, _watching(cfg))
        unvalidated = no_validation(trainer) if samples else None
        if resume is not None and not samples and trainer.is_global_zero:
            print(f"resume: the run is over: {ended.why}; to train further add {ended.to_go_on}")
        best = best_checkpoint(trainer)
        if cfg.test and status == "finished":
            with refusing_arguments():
                trainer.test(task, datamodule=data, ckpt_path=best, verbose=False)
            metrics |= task_metrics(trainer)
        cast(LocalFiles, trainer.strategy.checkpoint_io).raise_if_nothing_saved()
    except Stopped as stopped:
        return {STOPPED: stopped.number, "global_step": stopped.step}
    except SystemExit as end:
        # Lightning's ways to end after SIGTERM and after Ctrl-C.
        if isinstance(end, SIGTERMException):
            raise RankFailed("stopped by SIGTERM", status=143) from None
        raise RankFailed("stopped by SIGINT", status=130) from None
    except MisconfigurationException as error:
        if refusal := missing_metric(error, trainer):
            raise refusal from None
        # Lightning's way to say that what was chosen does not go together.
        if cast(OneCurve, trainer.strategy).samples_seen:
            raise
        raise UserError(in_a_line(error)) from error
    except OSError as error:
        # A place that a logger or a callback was given, noticed before anything is lost.
        begun = cast(OneCurve, trainer.strategy).samples_seen
        if begun or not error.filename or user_error_behind(error):
            raise
        raise UserError(
            f"{error.filename}: {error.strerror}; name a place that can be written to"
        ) from error
    except Exception as error:
        if refusal := missing_metric(error, trainer):
            raise refusal from None
        raise
    finally:
        cast(LocalFiles, trainer.strategy.checkpoint_io).finish_mirror()
        close_loggers(trainer)

    facts = {
        "strategy": cfg.strategy.name,
        "world_size": trainer.world_size,
        "global_step": trainer.global_step,
        "seconds": round(seconds, 3),
        "samples_per_second": round(samples / seconds, 1),
    }
    facts = final_facts(trainer) | facts
    if trainer.is_global_zero:
        is_early = ended.is_early and status == "finished"
        why = {"stopped": ended.why} if is_early else {}
        record.finished(run_dir, metrics | facts | why, status)
        # A sweep says it in a line.
        if OmegaConf.select(cfg, "sweep.job") is None:
            notes = [f"Stopped early by {ended.why}"] if is_early else []
            notes += [unvalidated] if unvalidated else []
            show_training(metrics, facts, run_dir, best, notes)
    return metrics


def _checkpoint_to_resume(cfg: DictConfig, attempt: Attempt) -> Path | None:
    """The file to resume from: after a restart of the ranks the newest of this run itself."""
    number, checkpoint = attempt
    if number:
        where = f"from {Path(checkpoint).name}" if checkpoint else "from the start"
        most = cfg.launch.max_restarts
        # torchrun counts for itself.
        start = f"restart {number} of {most}" if number <= most else "started again"
        print(f"{start}: the ranks go on {where}")
    if checkpoint:
        return Path(checkpoint)
    return Path(cfg.resume) if cfg.resume is not None else None


def _watching(cfg: DictConfig) -> dict[str, str]:
    """The name of the callback that stops early, by the metric that it watches."""
    callbacks = (cfg.get("callbacks") or {}).items()
    return {
        str(entry.get("monitor")): str(name)
        for name, entry in callbacks
        if entry and str(entry.get("_target_")).endswith("EarlyStopping")
    }


def task_metrics(trainer: Trainer) -> dict[str, float]:
    """What the task logged last, by name; learning rates and the like are left to metrics.csv."""
    metrics = trainer.callback_metrics.items()
    return {name: value.item() for name, value in metrics if "/" in name}


def build_task(cfg: DictConfig) -> LightningModule:
    """The LightningModule that a training configuration describes, with fresh weights.

    It is given those of `network`, `optimizer` and `scheduler` that its ``__init__`` takes.
    """
    checked("task", cfg.task)
    with building("task"):
        kind = get_class(cfg.task._target_)
        arguments = signature(kind).parameters.values()
    takes = {argument.name for argument in arguments}
    # Lightning's own takes any arguments, and makes nothing of them.
    has_own = getattr(kind, "__init__", None) is not getattr(LightningModule, "__init__", None)
    if has_own and any(argument.kind == Parameter.VAR_KEYWORD for argument in arguments):
        takes = {"network", "optimizer", "scheduler"}
    parts: dict[str, Any] = {}
    if "network" in takes:
        parts["network"] = made("model", cfg.model, nn.Module)
        with building("init"):
            instantiate(checked("init", cfg.init))(parts["network"])
    for name in ("optimizer", "scheduler"):
        if name in takes:
            with building(name):
                parts[name] = called(name, instantiate(checked(name, cfg[name])))
    task: LightningModule = made("task", cfg.task, LightningModule, **parts)
    return task
