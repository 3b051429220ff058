"""Models of the entries of `callbacks`, one for each class of callbacks."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ...checkpoint import remote
from ...checkpoint.file import cannot_be_made
from ...config_model import Config
from ..composed_run import ComposedRun
from ..displays.options import Options as Displays  # noqa: F401
from .groups import Count, Time

Mode = Literal["min", "max"]
TO_WRITE = "s3://BUCKET/PATH"
DIRECTION = "Whether a smaller (min) or a larger (max) value is better."


class BestAndLast(Config):
    """Keeps the best weights by a metric, and the newest state to resume from."""

    dirpath: str | None = Field(
        None, description="The folder, or s3://bucket/path; null for the run directory."
    )
    filename: str | None = Field(None, description="Name of the best; several need {epoch}.")
    monitor: str | None = Field(None, description="The metric that decides which are best.")
    mode: Mode = Field("min", description=DIRECTION)
    save_top_k: int = Field(1, description="How many of the best to keep; -1 for all.")
    save_last: bool | Literal["link"] | None = Field(
        None, description="Keep the newest: last.ckpt."
    )
    last_every_n_steps: Count | None = Field(None, description="Also save last.ckpt every n steps.")
    last_every_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Also save last.ckpt every n minutes, not only at validations."
    )
    every_n_train_steps: int | None = Field(None, description="Save every n training steps.")
    every_n_epochs: int | None = Field(None, description="Save every n epochs.")
    train_time_interval: Any = Field(None, description="Save whenever this much time has passed.")
    save_on_train_epoch_end: bool | None = Field(
        None, description="Save at the end of training epochs instead of after validations."
    )
    save_on_exception: bool = Field(False, description="Save when the run fails.")
    save_weights_only: bool = Field(False, description="Leave out what a resume needs.")
    auto_insert_metric_name: bool = Field(True, description="Put metric names into file names.")
    enable_version_counter: bool = Field(True, description="Add a number to a name that exists.")
    verbose: bool = Field(False, description="Log what is saved.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        name, kept = str(self.filename).removesuffix(".ckpt"), self.save_top_k
        if name == "last" and self.save_last:
            yield (
                f"{key}.filename=last: the newest state (save_last) has this name, and the best "
                f"weights would overwrite it; use {key}.filename=best"
            )
        if kept not in (0, 1) and name not in ("best", "None") and "{" not in name:
            yield (
                f"{key}.save_top_k={kept}: the files need different names, but "
                f"{key}.filename={name} is the same for all; use "
                f"'{key}.filename=\"{name}-{{epoch}}-{{step}}\"', or {key}.filename=best"
            )
        folder = self.dirpath or ""
        # The run directory, not known yet, is checked when it is created.
        is_own = folder and not folder.startswith(f"{run.get('paths.run')}/")
        if is_own and "://" not in folder and (reason := cannot_be_made(Path(folder))):
            yield (
                f"{key}.dirpath={folder}: cannot be created: {reason}; leave it out, or name a "
                f"folder that you may write to, such as {key}.dirpath=checkpoints"
            )
        if folder.startswith("file://"):
            yield (
                f"{key}.dirpath={folder}: a folder needs no scheme; use "
                f"{key}.dirpath=/{folder.partition('://')[2].lstrip('/')}"
            )
        elif remote.is_address(folder):
            if reason := remote.refusal(folder):
                yield f"{key}.dirpath={folder}: {reason.replace(remote.EXAMPLE, TO_WRITE)}"
            if run.get("checkpoint.format") == "sharded":
                yield (
                    f"{key}.dirpath={folder}: shards are written to a folder that all ranks see; "
                    "use checkpoint.format=file, or leave it out"
                )


class EarlyStopping(Config):
    """Ends training when a metric no longer improves."""

    monitor: str = Field(description="The metric.")
    mode: Mode = Field("min", description=DIRECTION)
    patience: int = Field(3, ge=0, description="Validations without progress before it stops.")
    min_delta: float = Field(0.0, description="The smallest change that counts as an improvement.")
    strict: bool = Field(True, description="Whether a missing metric is an error.")
    check_finite: bool = Field(True, description="Stop at a value that is not finite.")
    stopping_threshold: float | None = Field(None, description="Stop at a value better than this.")
    divergence_threshold: float | None = Field(None, description="Stop at a value worse than this.")
    check_on_train_epoch_end: bool | None = Field(
        None, description="Check at the end of training epochs instead of after validations."
    )
    verbose: bool = Field(False, description="Log every check.")
    log_rank_zero_only: bool = Field(False, description="Log on the first rank only.")


class ExponentialMovingAverage(Config):
    """Averages the weights after every optimizer step, and validates the average."""

    decay: float = Field(
        0.999,
        ge=0,
        le=1,
        description="Share of the average that a step keeps; less in the first steps.",
    )


class StochasticWeightAveraging(Config):
    """Averages the weights late in training; the average is tested at the end."""

    file: str = Field(description="Where to save the average.")
    start: float = Field(0.75, ge=0, description="When to start: a share of the run, or an epoch.")
    every_n_steps: Count | None = Field(None, description="Null: at the end of each epoch.")
    lr: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Learning rate from then on; null keeps the schedule's."
    )
    anneal_epochs: float = Field(1, ge=0, description="Epochs until the learning rate is `lr`.")
    annealing: Literal["cosine", "linear"] = Field("cosine", description="The way to `lr`.")
    validate_average: bool = Field(
        False,
        alias="validate",
        description="Validate the average, which costs a pass over the training set each time.",
    )

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if self.validate_average and run.has("ema"):
            yield (
                f"{key}.validate=true: callbacks=ema already validates its own average; use "
                f"{key}.validate=false, or '~callbacks.ema'"
            )
        if run.has("gradient_accumulation") and self.start >= 1:
            yield (
                f"{key}.start={run.get(f'{key}.start')}: epochs have different numbers of steps "
                "with callbacks=gradient_accumulation; give a share of the run, such as "
                f"{key}.start=0.75"
            )


class Accumulation(Config):
    """Changes the number of accumulated batches from epoch to epoch."""

    from_epochs: list[Annotated[int, Field(ge=0)]] = Field(description="Epochs; the first is 0.")
    batches: list[Count] = Field(description="Batches per optimizer step from each of them on.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        epochs = self.from_epochs
        same_number = len(epochs) == len(self.batches)
        if not (same_number and epochs[:1] == [0] and epochs == sorted(set(epochs))):
            yield (
                f"{key}.from_epochs={epochs}: must be increasing epochs from 0, with as many "
                f"numbers from 1 in batches={self.batches}, such as '{key}.from_epochs=[0,4]' "
                f"'{key}.batches=[1,2]'"
            )
        number = run.get("trainer.accumulate_grad_batches", 1)
        if number > 1:
            yield (
                f"trainer.accumulate_grad_batches={number}: callbacks=gradient_accumulation "
                "changes it from epoch to epoch; leave one of them out"
            )


class BatchSizeSearch(Config):
    """Before training: doubles the batch size until memory runs out."""

    first: int = Field(32, ge=1, description="Batch size to start with.")
    largest: int = Field(8192, ge=1, description="Batch size to stop at.")
    steps: int = Field(3, ge=1, description="Training steps per batch size.")
    apply: bool = Field(False, description="Train with the result, as with data.batch_size.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if not run.one_process:
            yield (
                f"callbacks=batch_size_finder: strategy={run.strategy} has several processes, and "
                "a rank that runs out of memory leaves the others waiting; find the batch size of "
                "one device with strategy=single, and multiply it"
            )
        if self.first > self.largest:
            yield (
                f"{key}.first={self.first}: must be at most largest={self.largest}, such as "
                f"{key}.first=1"
            )


class LearningRateRangeTest(Config):
    """Before training: raises the learning rate step by step, and plots the loss."""

    file: str = Field(description="The PNG file to write.")
    min_lr: float = Field(gt=0, description="The first learning rate.")
    max_lr: float = Field(gt=0, description="The last one, unless the loss diverges earlier.")
    steps: int = Field(100, ge=20, description="Optimizer steps between the two.")
    apply: bool = Field(False, description="Train with the suggestion, as with optimizer.lr.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if self.min_lr >= self.max_lr:
            lowest, highest = run.get(f"{key}.min_lr"), run.get(f"{key}.max_lr")
            yield (
                f"{key}.min_lr={lowest}: must be below max_lr={highest}, such as {key}.min_lr=1e-6"
            )


class KatibMetrics(Config):
    """Writes metrics for Katib's file collector, one JSON object per line."""

    file: str = Field(description="The file; lines are appended.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        file = Path(self.file)
        there = next(place for place in (file, *file.absolute().parents) if place.exists())
        fits = there.is_file() if there == file else there.is_dir()
        if not fits or not os.access(there, os.W_OK):
            yield (
                f"{key}.file={file}: cannot be written ({there} is in the way); use a file that "
                f"can, such as {key}.file=katib.json"
            )


class NanGuard(Config):
    """Stops at the first value that is not finite, and saves what reproduces it."""

    file: str = Field(description="Where to save the batch and the number of the step.")
    checkpoint: str = Field(description="Where to save the weights.")
    every_n_steps: int = Field(1, ge=1, description="How often to check.")


class EveryNSteps(Config):
    """Logs something every n optimizer steps."""

    every_n_steps: int = Field(50, ge=1, description="Optimizer steps between two values.")


class StopAfter(Config):
    """Stops training after some time, and saves a checkpoint to resume from."""

    duration: Time = Field(description="Training time, as days:hours:minutes:seconds.")


class Progress(Config):
    """Shows the progress of training: a bar in a terminal, plain lines elsewhere."""

    refresh_rate: int = Field(description="In a terminal: redraw every n steps.")
    seconds_between_lines: float = Field(description="Elsewhere: seconds between two lines.")


class LayerTable(Config, extra="allow"):
    """Prints the layers and the number of parameters before training."""

    max_depth: int = Field(1, description="How deep to descend into modules; -1 for all levels.")


class LearningRateMonitor(Config):
    """Logs the learning rate of every parameter group (a callback of Lightning)."""

    logging_interval: Literal["step", "epoch"] | None = Field(
        None, description="When; null for the interval of each scheduler."
    )
    log_momentum: bool = Field(False, description="Log momentum, too.")
    log_weight_decay: bool = Field(False, description="Log weight decay, too.")
