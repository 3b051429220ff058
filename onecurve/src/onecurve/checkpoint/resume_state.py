"""What a run adds to its checkpoints so that another run can resume, and takes from one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn

from ..compat.of_lightning import (
    accumulates,
    callbacks_of,
    initial_hyperparameters,
    is_in_step,
    logged_steps,
    metrics_to_log,
    set_initial_hyperparameters,
)
from .format import FORMAT, task_arguments
from .remote import is_address
from .resume_changes import apply_changes
from .storage import LocalFiles


@runtime_checkable
class ResumableLogger(Protocol):
    """A logger that is rewound to the checkpoint if a run resumes in the same directory.

    A logger without these methods logs some steps twice.
    """

    def position(self) -> dict[str, Any]:
        """The position, as plain data for a checkpoint, once everything logged is on the disk.

        Called on rank 0.
        """

    def go_on_from(self, position: dict[str, Any] | None) -> None:
        """Drop everything logged after a position; called before anything else is logged.

        Args:
            position: What `position` returned; None if the checkpoint has none of this logger.
        """


class ResumeState(Callback):
    """Adds to every checkpoint what another run needs to resume from it.

    Args:
        config: The resolved configuration, as it is stored.
        logs: ``logs`` of the checkpoint, if the run resumes in the directory that it is from.
        layout: ``layout`` of the checkpoint that the run resumes from.
        redact: Removes secrets from hyperparameters.
    """

    def __init__(
        self,
        config: dict[str, Any],
        logs: dict[str, Any] | None = None,
        layout: dict[str, Any] | None = None,
        redact: Callable[[Any], Any] = lambda parameters: parameters,
    ) -> None:
        self.config = config
        self.logs = logs
        self.layout = layout
        self.redact = redact

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Redact hyperparameters before they are logged."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for each in (pl_module, data):
            if (saved := initial_hyperparameters(each)) is not None:
                set_initial_hyperparameters(each, self.redact(saved))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put settings that changed since into the states that Lightning is about to load."""
        lines = rebase_best(checkpoint, trainer)
        if trainer.state.fn == TrainerFn.FITTING and trainer.train_dataloader is None:
            if changes := apply_changes(checkpoint, self.config):
                lines.append(f"from here on {'; '.join(changes)}")
            for line in lines if trainer.is_global_zero else ():
                print(f"resume: {line}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print how the layout changed; log the metrics that the checkpoint was too early for."""
        here = self._layout(trainer)
        if self.layout and self.layout != here and trainer.is_global_zero:
            before, now = (
                f"{layout['strategy']} on {layout['world_size']}" for layout in (self.layout, here)
            )
            print(
                f"resume: saved under {before}, continues under {now}: the samples stay in order; "
                "what a step draws at random is derived from seed, step and rank"
            )
        if self.logs and self.logs["unlogged"]:
            for logger in trainer.loggers:
                logger.log_metrics(self.logs["unlogged"], step=self.logs["step"])
        self.logs = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["format"] = FORMAT
        checkpoint["config"] = self.config
        checkpoint["layout"] = self._layout(trainer)
        if getattr(trainer, "earlier_steps", None):
            checkpoint["had_other_steps"] = True
        for kind in (LightningModule, LightningDataModule):
            if (key := kind.CHECKPOINT_HYPER_PARAMS_KEY) in checkpoint:
                checkpoint[key] = self.redact(checkpoint[key])
        checkpoint.setdefault(pl_module.CHECKPOINT_HYPER_PARAMS_KEY, task_arguments(self.config))
        # Lightning logs the metrics of a step, and of an epoch, only after the callbacks' hooks.
        in_step = is_in_step(trainer) and not accumulates(trainer)
        epoch: Any = trainer.fit_loop.epoch_progress.current
        unlogged: dict[str, float] = {}
        if in_step or epoch.processed > epoch.completed:
            unlogged = {name: float(value) for name, value in metrics_to_log(trainer).items()}
        if unlogged:
            unlogged["epoch"] = trainer.current_epoch
        positions = {
            type(logger).__name__: logger.position()
            for logger in trainer.loggers
            if trainer.is_global_zero and isinstance(logger, ResumableLogger)
        }
        checkpoint["logs"] = {
            # Lightning logs the end of an epoch at its last step.
            "step": logged_steps(trainer) - (not in_step),
            "unlogged": unlogged,
            "positions": positions,
        }

    def _layout(self, trainer: Trainer) -> dict[str, Any]:
        return {"strategy": self.config["strategy"]["name"], "world_size": trainer.world_size}


def resume_loggers(loggers: list[Logger], logs: dict[str, Any]) -> None:
    """Rewind loggers to where a checkpoint was written."""
    for logger in loggers:
        if isinstance(logger, ResumableLogger):
            logger.go_on_from(logs["positions"].get(type(logger).__name__))


def rebase_best(checkpoint: dict[str, Any], trainer: Trainer) -> list[str]:
    """Put the folders of this run into the saved states of ModelCheckpoint, before they are loaded.

    A run that resumes in its own directory keeps its best checkpoints, wherever the directory is
    now, unless they are gone. A new run that starts from the checkpoint of another has none yet.
    """
    states = checkpoint.get("callbacks") or {}
    resumed = Path(str(trainer.ckpt_path)).resolve()
    callbacks = callbacks_of(trainer, ModelCheckpoint)
    others = states.keys() - {each.state_key for each in callbacks}
    files, lines = cast(LocalFiles, trainer.strategy.checkpoint_io), []
    for callback in callbacks:
        key = callback.state_key
        if key not in states:  # the key also names when to save, which may have changed
            key = next((each for each in others if _monitored(each) == _monitored(key)), key)
        if key not in states:
            continue
        state = states.pop(key)
        best, score = state["best_model_path"], state["best_model_score"]
        was = best if score is None else f"{callback.monitor} {float(score):.4g} in {best}"
        folders = (trainer.default_root_dir, str(callback.dirpath))
        # What was resumed is a copy, if it was at an address.
        is_same = is_address(callback.dirpath) and state["dirpath"] == callback.dirpath
        if is_same or any(resumed.is_relative_to(Path(folder).resolve()) for folder in folders):
            moved = _moved(state, state["dirpath"], str(callback.dirpath))
            _keep_the_best(moved, callback)
            # Rank 0 wrote the files, maybe on a disk of its own.
            if trainer.strategy.broadcast(not best or files.has(moved["best_model_path"])):
                states[callback.state_key] = moved
            else:
                lines.append(f"the best so far is gone ({was}): the best is found from here on")
        elif best:
            lines.append(
                f"a new run, whose best checkpoint is found from here on; the run before had {was}"
            )
    return lines


def _keep_the_best(state: dict[str, Any], callback: ModelCheckpoint) -> None:
    """Leave out what is not among the best any more where fewer may be kept now."""
    scores, number = state["best_k_models"], callback.save_top_k
    if 0 < number < len(scores):
        best = sorted(scores, key=scores.__getitem__, reverse=callback.mode == "max")[:number]
        state["best_k_models"] = {path: scores[path] for path in best}
        state |= {"kth_best_model_path": best[-1], "kth_value": scores[best[-1]]}


def _monitored(key: str) -> str:
    """Metric and mode in the key of a ModelCheckpoint's state, or of a subclass's."""
    return key.partition("{")[2].partition(", 'every_n_train_steps'")[0]


def _moved(value: Any, before: str, here: str) -> Any:
    """A state with the paths that its files have in another folder."""
    if isinstance(value, dict):
        pairs = value.items()
        return {_moved(key, before, here): _moved(each, before, here) for key, each in pairs}
    is_inside = isinstance(value, str) and (value == before or value.startswith(f"{before}/"))
    return here + value.removeprefix(before) if is_inside else value
