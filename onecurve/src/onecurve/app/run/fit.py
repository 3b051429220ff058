"""What one process of train.py does, from top to bottom, and of evaluate.py, its last part."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import (
    Callback,
    LightningDataModule,
    LightningModule,
    seed_everything,
)
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from ...callbacks.device_stats import PeakMemory
from ...callbacks.garbage import GarbageCollection
from ...checkpoint.format import read_checkpoint, reject_incomplete_state, reject_other_network
from ...checkpoint.resume_state import ResumeState, resume_loggers
from ...checkpoint.storage import LocalFiles
from ...errors import UserError, of_the_project, plain_console, user_error_behind
from ...launch.context import (
    STOPPED,
    Attempt,
    EndedEarly,
    RankFailed,
    RunContext,
    Stopped,
    diverged,
)
from ...optim.steps import steps_done
from ...strategies.strategy import OneCurve
from . import record, redaction
from .instantiate import build, build_task, describe_error, load_trained, trainer_errors
from .monitor import MonitoredMetrics, missing_metric, no_validation
from .record import invocation_of, override
from .stop import StopOnSignal, end_of_training
from .trainer import (
    LogConfiguration,
    best_checkpoint,
    build_trainer,
    close_loggers,
    earlier_steps,
    final_facts,
    task_metrics,
)

# Facts with rows of their own.
SHOWN = {"strategy", "world_size", "global_step", "seconds", "samples_per_second"}


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

    if resume is not None:
        cfg.trainer.num_sanity_val_steps = 0  # it has been validated before

    data = build("data", cfg.data, LightningDataModule)
    task = build_task(cfg)
    if cfg.test:
        _reject_without_test(task, data, ", or use test=false")
    stored = redaction.redacted(config)
    resume_state = ResumeState(
        stored,
        logs=checkpoint["logs"] if checkpoint and in_place else None,
        layout=checkpoint.get("layout") if checkpoint else None,
        redact=partial(redaction.redact_hyperparameters, config=config),
    )
    last = run_dir / "checkpoints" / "last.ckpt"
    own: list[Callback] = [PeakMemory(), resume_state, MonitoredMetrics(cfg, last)]
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
        if refusal := missing_metric(error, trainer, cfg):
            raise refusal from None
        if not strategy.samples_seen and (line := _rejected_before_training(error)):
            raise UserError(line) from error
        raise
    finally:
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
            tested = best if is_overridden("test_step", task) else None
            show_training(metrics, facts, run_dir, tested, notes)
    return metrics


def _checkpoint_to_resume(cfg: DictConfig, attempt: Attempt) -> Path | None:
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
    is_own = user_error_behind(error) is not None or of_the_project(error)
    if isinstance(error, OSError) and error.filename and not is_own:
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


def evaluate(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Rebuild task and data from the checkpoint's own configuration, and return test metrics."""
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    trainer = build_trainer(cfg, run_dir, extra_callbacks=[])
    task, data, _ = load_trained(cfg, trainer.precision_plugin.convert_module)
    _reject_without_test(task, data)
    with trainer_errors():
        trainer.test(task, datamodule=data, verbose=False)

    metrics = task_metrics(trainer)
    facts = {"checkpoint": str(cfg.checkpoint), "strategy": cfg.strategy.name}
    if trainer.is_global_zero:
        record.finished(run_dir, metrics | facts | {"world_size": trainer.world_size})
        show_metrics(metrics, run_dir)
    return metrics


def _reject_without_test(task: LightningModule, data: LightningDataModule, hint: str = "") -> None:
    """Reject what Lightning would reject only once the test begins, after the training."""
    for name, part in {"test_step": task, "test_dataloader": data}.items():
        if not is_overridden(name, part):
            raise UserError(f"{type(part).__name__} has no {name}; write one{hint}")


# The table at the end


def show_training(
    metrics: dict[str, float],
    facts: dict[str, Any],
    run_dir: Path,
    best: str | None,
    notes: Sequence[str] = (),
) -> None:
    """Print the results of a training run, where they are, and notes on how it ended."""
    table = _table("Training finished")
    _add_metrics(table, metrics)
    table.add_section()
    table.add_row("steps", str(facts["global_step"]))
    table.add_row("time", f"{facts['seconds']:.1f} s")
    table.add_row("samples per second", f"{facts['samples_per_second']:,.0f}")
    for name in (name for name in facts if name not in SHOWN):
        table.add_row(*_fact(name, facts[name]))
    count = facts["world_size"]
    processes = "1 process" if count == 1 else f"{count} processes"
    table.add_row("strategy", f"{facts['strategy']} on {processes}")
    console = plain_console()
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True, highlight=False)
    _print_path(console, "Run directory", run_dir, run_dir)
    if best:
        called = invocation_of(run_dir)
        command = called.command("evaluate.py", override("checkpoint", called.short(best)))
        console.print("Evaluate the best checkpoint:")
        console.print(f"  {command}", soft_wrap=True, highlight=False)


def show_metrics(metrics: dict[str, float], run_dir: Path) -> None:
    """Print the metrics of an evaluation."""
    table = _table("Evaluation finished")
    _add_metrics(table, metrics)
    console = plain_console()
    console.print(table)
    _print_path(console, "Written to", run_dir / "metrics.json", run_dir)


def _table(title: str) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    return table


def _add_metrics(table: Table, metrics: dict[str, float]) -> None:
    for name in sorted(metrics):
        table.add_row(name, f"{metrics[name]:.4f}")


def _fact(name: str, value: float) -> tuple[str, str]:
    """A name in words and a number with its unit: `peak_memory_mib` is a peak memory in MiB."""
    number = f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"
    unit = " MiB" if name.endswith("_mib") else ""
    return name.removesuffix("_mib").replace("_", " "), f"{number}{unit}"


def _print_path(console: Console, what: str, path: Path, run_dir: Path) -> None:
    console.print(f"{what}: {invocation_of(run_dir).short(path)}", soft_wrap=True, highlight=False)
