"""What a checkpoint holds: Lightning's dictionary in plain containers, and what it takes to go on.

Beside Lightning's keys there are ``config``, the resolved configuration, with which a checkpoint
alone is enough to rebuild the task and its data; ``logs``, how far the loggers had come;
``layout``, how many ranks there were; and ``format``, a number that grows when old readers fail.
Lightning's ``hyper_parameters`` are the task's arguments out of the configuration, so that
`load_from_checkpoint` needs nothing but the file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn

from ..errors import UserError
from ..loggers.resumable import ResumableLogger
from .changed_settings import apply_changes
from .file import damage
from .keys import refuse_other_kinds
from .plain import NotPlain, plain_contents

# Of what a checkpoint holds; those of earlier releases say nothing of it.
FORMAT = 1
NAMES_SHOWN = 3
# Where Lightning stores what `save_hyperparameters` keeps.
PARAMETERS = (
    LightningModule.CHECKPOINT_HYPER_PARAMS_KEY,
    LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY,
)


class CarryOn(Callback):
    """Adds to every checkpoint what another run needs to go on with it.

    Args:
        config: The resolved configuration.
        logs: ``logs`` of the checkpoint that this run goes on with in the same directory.
        layout: ``layout`` of the checkpoint that this run goes on with.
        hide: What classes keep of their arguments, without what is not stored.
    """

    def __init__(
        self,
        config: dict[str, Any],
        logs: dict[str, Any] | None = None,
        layout: dict[str, Any] | None = None,
        hide: Callable[[Any], Any] = lambda parameters: parameters,
    ) -> None:
        self.config = config
        self.logs = logs
        self.layout = layout
        self.hide = hide

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before loggers are told of hyperparameters."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for each in (pl_module, data):
            if hasattr(each, "_hparams_initial"):
                each._hparams_initial = self.hide(each._hparams_initial)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lightning is about to load states, in which changed settings have their old values."""
        if trainer.state.fn == TrainerFn.FITTING and trainer.train_dataloader is None:
            changes = apply_changes(checkpoint, self.config)
            if changes and trainer.is_global_zero:
                print(f"resume: from here on {'; '.join(changes)}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how the layout changed, and log what the checkpoint was written too early for."""
        here = self._layout(trainer)
        if self.layout and self.layout != here and trainer.is_global_zero:
            before, now = (
                f"{layout['strategy']} on {layout['world_size']}" for layout in (self.layout, here)
            )
            print(
                f"resume: saved under {before}, goes on under {now}: the samples stay in order; "
                "what a step draws at random is derived anew from seed, step and rank"
            )
        if self.logs and self.logs["unlogged"]:
            for logger in trainer.loggers:
                logger.log_metrics(self.logs["unlogged"], step=self.logs["step"])
        self.logs = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lightning is about to write the file; everything logged so far goes to the disk first."""
        checkpoint["format"] = FORMAT
        checkpoint["config"] = self.config
        checkpoint["layout"] = self._layout(trainer)
        for key in PARAMETERS:
            if key in checkpoint:
                checkpoint[key] = self.hide(checkpoint[key])
        checkpoint.setdefault(pl_module.CHECKPOINT_HYPER_PARAMS_KEY, task_arguments(self.config))
        loop = trainer.fit_loop.epoch_loop
        # At the end of a step, and of an epoch, its metrics are logged only after the callbacks.
        batch: Any = loop.batch_progress.current
        in_step = batch.processed > batch.completed and not trainer.fit_loop._should_accumulate()
        epoch: Any = trainer.fit_loop.epoch_progress.current
        unlogged: dict[str, float] = {}
        if in_step or epoch.processed > epoch.completed:
            metrics = trainer._logger_connector.metrics["log"]
            unlogged = {name: float(value) for name, value in metrics.items()}
        if unlogged:
            unlogged["epoch"] = trainer.current_epoch
        positions = {
            type(logger).__name__: logger.position()
            for logger in trainer.loggers
            if trainer.is_global_zero and isinstance(logger, ResumableLogger)
        }
        checkpoint["logs"] = {
            # Lightning logs the end of an epoch at its last step.
            "step": loop._batches_that_stepped - (not in_step),
            "unlogged": unlogged,
            "positions": positions,
        }

    def _layout(self, trainer: Trainer) -> dict[str, Any]:
        return {"strategy": self.config["strategy"]["name"], "world_size": trainer.world_size}


def task_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """What the task's ``__init__`` is given, as plain data."""
    network = without_download(config)["model"]
    parts = {"network": network, "optimizer": config["optimizer"], "scheduler": config["scheduler"]}
    own = {key: value for key, value in config["task"].items() if key != "_target_"}
    return parts | own


def without_download(config: dict[str, Any]) -> dict[str, Any]:
    """A training configuration without weights to download, which a checkpoint's replace."""
    model = config["model"]
    return {**config, "model": {**model, "weights": None}} if "weights" in model else config


def go_on_logging(loggers: list[Logger], logs: dict[str, Any]) -> None:
    """Tell loggers where a checkpoint was written; they drop what came after it."""
    for logger in loggers:
        if isinstance(logger, ResumableLogger):
            logger.go_on_from(logs["positions"].get(type(logger).__name__))


class EpochPosition(NamedTuple):
    """Where in its epoch a checkpoint was written."""

    of_loaders: list[dict[str, Any]]
    """What each training loader that can tell its position said of it."""
    is_inside: bool
    """Whether the epoch had begun and was not over."""


def epoch_position(checkpoint: dict[str, Any]) -> EpochPosition:
    """Where in its epoch a checkpoint was written."""
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    batches = loop.get("epoch_loop.batch_progress", {})
    has_begun = batches.get("current", {}).get("completed", 0) > 0
    return EpochPosition(
        of_loaders=list(loop.get("state_dict", {}).get("combined_loader") or []),
        is_inside=has_begun and not batches["is_last_batch"],
    )


def read_checkpoint(
    path: str | Path, whole: bool = True, is_checked: bool = False
) -> dict[str, Any]:
    """Read a checkpoint onto the CPU without running any code in it (``weights_only=True``).

    Args:
        path: A file, or the folder of a sharded checkpoint.
        whole: Whether to read the tensors of a sharded one; otherwise see `stored`.
        is_checked: Whether `damage` has found nothing already: the command looks before it starts
            the ranks.

    Returns:
        Lightning's dictionary: ``state_dict``, ``optimizer_states``, ``loops``, ...

    Raises:
        UserError: If there is no such file, or it is no complete checkpoint.
    """
    path = Path(path)
    if not is_checked and (reason := damage(path)):
        raise UserError(
            f"{path}: is no complete checkpoint: {reason}; give one that a training run wrote, "
            "such as runs/.../checkpoints/best.ckpt"
        )
    try:
        if path.is_dir():
            from .sharded.read import read_rest, read_whole

            checkpoint = read_rest(path)
            if whole:
                checkpoint = read_whole(checkpoint)
        else:
            checkpoint = plain_contents(path, is_checked=True)
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: cannot be read ({' '.join(str(error).split())[:80]}); give another, such as "
            "runs/.../checkpoints/best.ckpt"
        ) from None
    except NotPlain as error:
        raise UserError(
            f"{path}: {error}; give one of tensors, numbers, strings and containers, such as "
            "runs/.../checkpoints/best.ckpt"
        ) from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path}: holds no state_dict; give one that a training run wrote")
    refuse_other_kinds(checkpoint, path)
    version = checkpoint.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise UserError(
            f"{path}: has format {checkpoint['format']}, and this release of onecurve reads up to "
            f"{FORMAT}; install the release that wrote it, or a newer one"
        )
    return checkpoint


def trained_config(checkpoint: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """The configuration that a command put into a checkpoint, without weights to download.

    Raises:
        UserError: If it was a script without one that wrote it.
    """
    config = checkpoint.get("config") or {}
    if not all(isinstance(config.get(part), dict) for part in ("task", "data")):
        raise UserError(
            f"{path}: holds no configuration, with which to build the task again; "
            "give one that train.py wrote, or call load_from_checkpoint in a script"
        )
    return without_download(checkpoint["config"])


def _in_words(shape: Any) -> str:
    return "no tensor" if shape is None else str(tuple(shape))


def refuse_other_network(task: LightningModule, checkpoint: dict[str, Any], path: str) -> None:
    """Refuse to go on with another network's weights.

    Raises:
        UserError: That names the first keys in which they differ.
    """
    own, other = task.state_dict(), checkpoint["state_dict"]
    different = [f"{name} is only in the checkpoint" for name in other if name not in own]
    different += [f"{name} is not in the checkpoint" for name in own if name not in other]
    # What `get_extra_state` returns has no shape, and is its module's affair.
    shapes = {name: getattr(value, "shape", None) for name, value in own.items()}
    there = {name: getattr(value, "shape", None) for name, value in other.items()}
    different += [
        f"{name} is {_in_words(there[name])} there and {_in_words(shapes[name])} here"
        for name in own
        if name in other and shapes[name] != there[name]
    ]
    if different:
        more = len(different) - NAMES_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        raise UserError(
            f"resume={path}: is of another network: {', '.join(different[:NAMES_SHOWN])}{rest}; "
            f"give the model that it was trained with, or take what fits of it: init={path}"
        )
