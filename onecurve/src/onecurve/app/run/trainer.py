"""Builds the Lightning Trainer of a run from the configuration."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    ProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, Logger
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ... import machine
from ...checkpoint.storage import LocalFiles, ShardedFolders
from ...compat.of_lightning import callbacks_of, empty_hooks_skipped, logging_in_place
from ..loggers.buffered import BufferedCSVLogger, BufferedTensorBoardLogger
from .instantiate import build
from .interpolation import dotted
from .protocols import HasFinalWeights

# The number of steps in an epoch follows from these keys.
STEP_KEYS = {"data", "callbacks.gradient_accumulation"}
STEP_KEYS |= {"trainer.accumulate_grad_batches", "trainer.limit_train_batches"}


class EarlierSteps(NamedTuple):
    """The progress of a run before it was resumed with another number of batches to a step."""

    epochs: int  # complete ones
    batches: int  # of the epoch that is continued
    steps: int  # of the optimizer, in all


def earlier_steps(checkpoint: Mapping[str, Any], config: Mapping[str, Any]) -> EarlierSteps | None:
    """The progress in a checkpoint; None if all its steps were of this configuration's size."""
    before, now = (dict(dotted(each)) for each in (checkpoint.get("config") or config, config))
    is_alike = all(before.get(key) == now.get(key) for key in STEP_KEYS)
    if is_alike and not checkpoint.get("had_other_steps"):
        return None
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    batches: int = progress["current"]["processed"]
    epochs: int = loop["epoch_progress"]["current"]["ready"]
    if batches and progress["is_last_batch"]:
        return EarlierSteps(epochs, 0, checkpoint["global_step"])
    return EarlierSteps(max(0, epochs - 1), batches, checkpoint["global_step"])


class RunTrainer(Trainer):
    """Lightning's Trainer, which estimates the steps of a resumed run right."""

    earlier_steps: EarlierSteps | None = None
    resumes: bool = False  # whether the current fit does: `ckpt_path` is set later

    def fit(self, *args: Any, **kwargs: Any) -> None:
        passed = signature(Trainer.fit).bind(self, *args, **kwargs).arguments
        self.resumes = passed.get("ckpt_path") is not None
        with self._quick():
            super().fit(*args, **kwargs)

    def validate(self, *args: Any, **kwargs: Any) -> Any:
        with self._quick():
            return super().validate(*args, **kwargs)

    def test(self, *args: Any, **kwargs: Any) -> Any:
        with self._quick():
            return super().test(*args, **kwargs)

    @contextmanager
    def _quick(self) -> Iterator[None]:
        callbacks = self.callbacks  # type: ignore[attr-defined]
        with logging_in_place(), empty_hooks_skipped(callbacks):
            yield

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the run, including those before it was resumed.

        Lightning's own takes the first epoch's number of batches to a step for all epochs.
        """
        estimate = super().estimated_stepping_batches
        if self.num_training_batches == math.inf or (self.max_epochs or -1) < 1:
            return estimate
        batches, epochs = cast(int, self.num_training_batches), cast(int, self.max_epochs)
        steps, first = 0, 0
        earlier = self.earlier_steps
        if earlier and self.lightning_module.automatic_optimization:
            first = earlier.epochs
            left_out = earlier.batches // self._batches_per_step(first) if first < epochs else 0
            steps = earlier.steps - left_out
        # There may be very many epochs, where max_steps ends a run.
        schedules = callbacks_of(self, GradientAccumulationScheduler)
        begins = sorted({each for schedule in schedules for each in schedule.epochs})
        changes = [each for each in begins if first < each < epochs]
        for start, end in pairwise([first, *changes, max(first, epochs)]):
            steps += (end - start) * math.ceil(batches / self._batches_per_step(start))
        return min(steps, self.max_steps) if self.max_steps != -1 else steps

    def _batches_per_step(self, epoch: int) -> int:
        for schedule in callbacks_of(self, GradientAccumulationScheduler):
            batches: int = schedule.get_accumulate_grad_batches(epoch)
            return batches
        return self.accumulate_grad_batches


def trainer_arguments(
    cfg: DictConfig, run_dir: Path, callbacks: list[Callback], loggers: list[Logger]
) -> dict[str, Any]:
    """The arguments of a Trainer with the configured strategy, and these callbacks and loggers."""
    strategy = strategy_of(cfg)
    strategy.checkpoint_io = _storage(cfg)
    strategy.compiled = cfg.get("compile", "none")
    strategy.compile_backend = cfg.get("compile_backend", "inductor")
    return {
        **arguments_of(cfg),
        "strategy": strategy,
        "callbacks": callbacks,
        "logger": loggers or False,
        "default_root_dir": run_dir,
        # Each would add a callback of Lightning's own that was not asked for.
        "enable_checkpointing": any(isinstance(each, Checkpoint) for each in callbacks),
        "enable_progress_bar": any(isinstance(each, ProgressBar) for each in callbacks),
        "enable_model_summary": any(isinstance(each, ModelSummary) for each in callbacks),
    }


def writes_csv(logger: Logger, run_dir: Path) -> bool:
    """Whether a logger writes metrics.csv into the run directory."""
    return isinstance(logger, CSVLogger) and Path(logger.log_dir).resolve() == run_dir.resolve()


def arguments_of(cfg: DictConfig) -> dict[str, Any]:
    """The arguments of the Trainer, with the devices resolved for this machine."""
    one_device = cfg.strategy.processes == "one"
    arguments: dict[str, Any] = OmegaConf.to_container(cfg.trainer)  # type: ignore[assignment]
    arguments["accelerator"] = machine.accelerator(cfg.trainer, one_device)
    arguments["num_nodes"] = machine.num_nodes(cfg.trainer)
    if precision := arguments.get("precision"):
        arguments["precision"] = machine.full_precision_name(precision)
    # A list names GPUs; of CPUs there is only a number.
    if arguments["devices"] in ("auto", -1, "-1") or arguments["accelerator"] == "cpu":
        arguments["devices"] = machine.local_devices(cfg.trainer, one_device)
    return arguments


def strategy_of(cfg: DictConfig) -> Any:
    """Build the strategy of a configuration."""
    about = {"name", "processes"}  # describe it, and are no arguments
    options = {key: value for key, value in cfg.strategy.items() if key not in about}
    return build("strategy", options)


def best_checkpoint(trainer: Trainer) -> str | None:
    """Path of the checkpoint to test, if a callback saved one.

    That is the `final_weights` of a callback (`protocols.HasFinalWeights`), else the best by a
    monitored metric.
    """
    files = cast(LocalFiles, trainer.strategy.checkpoint_io)
    files.finish()
    final = [each.final_weights for each in callbacks_of(trainer, HasFinalWeights)]
    best = [each.best_model_path for each in callbacks_of(trainer, ModelCheckpoint)]
    paths = [path for path in final if path]
    paths += [path for path in best if path and files.has(path)]
    # Rank 0 wrote them, maybe on a disk of its own.
    return trainer.strategy.broadcast(paths[0] if paths else None)


def logged_by_task(trainer: Trainer) -> dict[str, Tensor]:
    """What callbacks can monitor, without the learning rates that LearningRateMonitor adds."""
    rates: set[str] = set()
    for each in callbacks_of(trainer, LearningRateMonitor):
        rates |= {*each.lrs, *each.last_momentum_values, *each.last_weight_decay_values}
    return {name: value for name, value in trainer.callback_metrics.items() if name not in rates}


def close_loggers(loggers: Iterable[Logger]) -> None:
    """Write what was logged last; close experiments of Weights & Biases and Comet."""
    for logger in loggers:
        if isinstance(logger, BufferedCSVLogger | BufferedTensorBoardLogger):
            logger.finalize("finished")
        experiment = getattr(logger, "experiment", None)
        close = getattr(experiment, "finish", None) or getattr(experiment, "end", None)
        if callable(close):
            close()


def _storage(cfg: DictConfig) -> LocalFiles:
    settings = cfg.get("checkpoint")
    if not isinstance(settings, DictConfig):
        return LocalFiles()
    kind = ShardedFolders if settings.format == "sharded" else LocalFiles
    return kind(settings["async"])
