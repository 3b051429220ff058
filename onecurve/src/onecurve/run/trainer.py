"""Builds the Lightning Trainer of a run from the configuration."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelSummary,
    ProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig, OmegaConf

from .. import machine
from ..checkpoint.mirror import Mirror
from ..checkpoint.storage import LocalFiles, ShardedFolders
from ..loggers.buffered import BufferedCSVLogger
from .begun import Begun
from .building import building, made
from .logged_in_place import log_in_place
from .protocols import HasEnd, HasFinalFacts, HasFinalWeights
from .step_hooks import pass_over_empty
from .trainer_arguments import refusing_arguments


class RunTrainer(Trainer):
    """Lightning's Trainer, which counts the steps of a run right.

    Attributes:
        begun: What was made by steps of another size, before the run was resumed.
    """

    begun: Begun | None = None

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimizer steps of the run, those that were made before it was resumed among them.

        Lightning's own takes the first epoch's number of batches to a step for all epochs.
        """
        estimate = super().estimated_stepping_batches
        if self.num_training_batches == math.inf or (self.max_epochs or -1) < 1:
            return estimate
        batches = cast(int, self.num_training_batches)
        sizes = [self._batches_to_a_step(epoch) for epoch in range(cast(int, self.max_epochs))]
        steps = 0
        if self.begun and self.lightning_module.automatic_optimization:
            sizes = sizes[self.begun.epochs :]
            steps = self.begun.steps - (self.begun.batches // sizes[0] if sizes else 0)
        steps += sum(math.ceil(batches / size) for size in sizes)
        return min(steps, self.max_steps) if self.max_steps != -1 else steps

    def _batches_to_a_step(self, epoch: int) -> int:
        callbacks: list[Callback] = self.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, GradientAccumulationScheduler):
                return callback.get_accumulate_grad_batches(epoch)
        return self.accumulate_grad_batches


class NoProfiler(PassThroughProfiler):
    """Measures nothing, and takes no time for it: Lightning asks some eighty times a step."""

    NOTHING = nullcontext()

    def profile(self, action_name: str) -> Any:
        return self.NOTHING


def build_trainer(
    cfg: DictConfig,
    run_dir: Path,
    extra_callbacks: list[Callback],
    logs_metrics: bool = False,
) -> RunTrainer:
    """The Trainer with the configured strategy, callbacks and loggers.

    Args:
        cfg: A configuration with `trainer` and `strategy`, and maybe `callbacks` and `logger`.
        run_dir: Where everything is written.
        extra_callbacks: What every run needs.
        logs_metrics: Whether metrics.csv is written, whatever loggers there are.
    """
    log_in_place()
    callbacks = [*instances("callbacks", cfg.get("callbacks"), Callback), *extra_callbacks]
    loggers = instances("logger", cfg.get("logger"), Logger)
    if logs_metrics and not any(_writes_metrics(logger, run_dir) for logger in loggers):
        loggers.append(BufferedCSVLogger(str(run_dir), "", "", flush_logs_every_n_steps=100))
    arguments = arguments_of(cfg)
    arguments["profiler"] = arguments.get("profiler") or NoProfiler()
    strategy = strategy_of(cfg)
    strategy.checkpoint_io = _storage(cfg, run_dir)
    strategy.report_dir = run_dir
    strategy.compiled = cfg.get("compile", "none")
    strategy.compile_backend = cfg.get("compile_backend", "inductor")
    strategy.count_labels = cfg.get("count_labels", True)
    with building("trainer"), refusing_arguments():
        trainer = RunTrainer(
            **arguments,
            strategy=strategy,
            callbacks=callbacks,
            logger=loggers or False,
            default_root_dir=run_dir,
            # Each of these would add a callback of Lightning's own that nobody asked for.
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
            enable_model_summary=any(isinstance(callback, ModelSummary) for callback in callbacks),
        )
    pass_over_empty(trainer.callbacks)  # type: ignore[attr-defined]
    return trainer


def arguments_of(cfg: DictConfig) -> dict[str, Any]:
    """What a configuration says to a Trainer, with the devices that it means here."""
    one_device = cfg.strategy.processes == "one"
    arguments: dict[str, Any] = OmegaConf.to_container(cfg.trainer)  # type: ignore[assignment]
    arguments["accelerator"] = machine.accelerator(cfg.trainer, one_device)
    arguments["num_nodes"] = machine.num_nodes(cfg.trainer)
    # A list says which GPUs; of CPUs there is only a number.
    if arguments["devices"] in ("auto", -1, "-1") or arguments["accelerator"] == "cpu":
        arguments["devices"] = machine.local_devices(cfg.trainer, one_device)
    return arguments


def strategy_of(cfg: DictConfig) -> Any:
    """The strategy of a configuration, without what is only said of it."""
    about = {"name", "processes"}
    options = {key: value for key, value in cfg.strategy.items() if key not in about}
    return made("strategy", options, Strategy)


def best_checkpoint(trainer: Trainer) -> str | None:
    """Path of the checkpoint to test, if a callback saved one.

    That is the `final_weights` of a callback (`protocols.HasFinalWeights`), else the best by a
    metric.
    """
    cast(LocalFiles, trainer.strategy.checkpoint_io).finish()
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    final = [each.final_weights for each in callbacks if isinstance(each, HasFinalWeights)]
    paths = [path for path in final if path]
    paths += [
        callback.best_model_path
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint)
        and callback.best_model_path
        and Path(callback.best_model_path).exists()
    ]
    # The first rank wrote them and knows.
    return trainer.strategy.broadcast(paths[0] if paths else None)


def final_facts(trainer: Trainer) -> dict[str, float]:
    """What callbacks (`protocols.HasFinalFacts`) have to say of the whole run, by name."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    facts: dict[str, float] = {}
    for callback in callbacks:
        if isinstance(callback, HasFinalFacts):
            facts |= callback.final_facts
    return facts


def close_loggers(trainer: Trainer) -> None:
    """End what a logger keeps open: by `end`, or by `finish` of what it logs to.

    Weights & Biases has one run a process until that is finished.
    """
    for logger in trainer.loggers:
        if isinstance(logger, HasEnd):
            logger.end()
            continue
        finish = getattr(getattr(logger, "experiment", None), "finish", None)
        if callable(finish):
            finish()


def instances(name: str, group: DictConfig | None, kind: type) -> list[Any]:
    """What the entries of a group describe, in their order."""
    entries = (group or {}).items()
    return [made(f"{name}.{key!s}", entry, kind) for key, entry in entries if entry]


def _writes_metrics(logger: Any, run_dir: Path) -> bool:
    return isinstance(logger, CSVLogger) and Path(logger.log_dir).resolve() == run_dir.resolve()


def _storage(cfg: DictConfig, run_dir: Path) -> LocalFiles:
    settings = cfg.get("checkpoint")
    if not isinstance(settings, DictConfig):
        return LocalFiles()
    kind = ShardedFolders if settings.format == "sharded" else LocalFiles
    address = settings.get("mirror_to")
    return kind(
        settings["async"],
        stop_on_failure=settings.on_failure == "stop",
        mirror=Mirror(str(address), run_dir) if address else None,
    )
