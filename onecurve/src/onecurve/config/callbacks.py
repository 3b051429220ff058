"""What the callbacks take: models of the entries of `callbacks`, by class."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..checkpoint.file import cannot_be_made
from ..composed_run import ComposedRun
from ..config_model import Config
from .values import Count, Time

Mode = Literal["min", "max"]
WAY = "Whether less or more of the metric is better."


class BestAndLast(Config):
    """Keeps the best weights by a metric, and the newest state to resume from."""

    dirpath: str | None = Field(None, description="Where; null for the run directory.")
    filename: str | None = Field(None, description="Of the best; with epoch and step if several.")
    monitor: str | None = Field(None, description="The metric by which weights are best.")
    mode: Mode = Field("min", description=WAY)
    save_top_k: int = Field(1, description="How many of the best are kept; -1 for all.")
    save_last: bool | Literal["link"] | None = Field(
        None, description="Keep the newest: last.ckpt."
    )
    last_every_n_steps: Count | None = Field(None, description="Steps between two last.ckpt, too.")
    last_every_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Minutes between two last.ckpt, beside every validation."
    )
    every_n_train_steps: int | None = Field(None, description="Save every so many steps.")
    every_n_epochs: int | None = Field(None, description="Save every so many epochs.")
    train_time_interval: Any = Field(None, description="Save whenever so much time has passed.")
    save_on_train_epoch_end: bool | None = Field(None, description="Not after a validation.")
    save_on_exception: bool = Field(False, description="Save when the run fails.")
    save_weights_only: bool = Field(False, description="Leave out what a resume needs.")
    auto_insert_metric_name: bool = Field(True, description="Put metric names into file names.")
    enable_version_counter: bool = Field(True, description="Number a file whose name is taken.")
    verbose: bool = Field(False, description="Log what is saved.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why these files cannot be written."""
        name, kept = str(self.filename).removesuffix(".ckpt"), self.save_top_k
        if name == "last" and self.save_last:
            yield (
                f"{key}.filename=last: is the name of the newest state (save_last), which the best "
                f"weights would overwrite; use {key}.filename=best"
            )
        if kept not in (0, 1) and name not in ("best", "None") and "{" not in name:
            yield (
                f"{key}.save_top_k={kept}: files need names that differ, and {key}.filename={name} "
                f"is one name; use '{key}.filename=\"{name}-{{epoch}}-{{step}}\"', or "
                f"{key}.filename=best"
            )
        folder = self.dirpath or ""
        if folder and "://" not in folder and (reason := cannot_be_made(Path(folder))):
            yield (
                f"{key}.dirpath={folder}: cannot be made: {reason}; leave it out, or name a folder "
                f"that you may write to, such as {key}.dirpath=checkpoints"
            )
        if "://" in folder:
            yield (
                f"{key}.dirpath={folder}: checkpoints are written to a local disk, or to one that "
                f"is mounted; leave it out, or use {key}.dirpath=FOLDER"
            )


class EarlyStopping(Config):
    """Ends training when a metric no longer improves."""

    monitor: str = Field(description="The metric.")
    mode: Mode = Field("min", description=WAY)
    patience: int = Field(3, ge=0, description="Validations without improvement before the end.")
    min_delta: float = Field(0.0, description="What counts as an improvement.")
    strict: bool = Field(True, description="Whether a metric that is not there is an error.")
    check_finite: bool = Field(True, description="End at a value that is not finite.")
    stopping_threshold: float | None = Field(None, description="End at a value that is better.")
    divergence_threshold: float | None = Field(None, description="End at a value that is worse.")
    check_on_train_epoch_end: bool | None = Field(None, description="Not after a validation.")
    verbose: bool = Field(False, description="Log what is seen.")
    log_rank_zero_only: bool = Field(False, description="On the first rank alone.")


class ExponentialMovingAverage(Config):
    """Averages the weights after every optimizer step, and validates the average."""

    decay: float = Field(
        0.999,
        ge=0,
        le=1,
        description="Share of the average that a step keeps; the first steps keep less.",
    )


class StochasticWeightAveraging(Config):
    """Averages the weights that training reaches late, and has the average tested."""

    file: str = Field(description="Where the average is saved.")
    start: float = Field(0.75, ge=0, description="A share of the run, or after how many epochs.")
    every_n_steps: Count | None = Field(None, description="Null for the end of each epoch.")
    lr: Annotated[float, Field(gt=0)] | None = Field(None, description="Learning rate from then.")
    anneal_epochs: float = Field(1, ge=0, description="Epochs until the learning rate is `lr`.")
    annealing: Literal["cosine", "linear"] = Field("cosine", description="How it gets there.")
    validate_average: bool = Field(
        False,
        alias="validate",
        description="Validate the average, which costs a pass over the training set each time.",
    )

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why its average cannot be validated, or its start not be found."""
        if self.validate_average and run.has("ema"):
            yield (
                f"{key}.validate=true: callbacks=ema has its own average validated; use "
                f"{key}.validate=false, or '~callbacks.ema'"
            )
        if run.has("gradient_accumulation") and self.start >= 1:
            yield (
                f"{key}.start={run.get(f'{key}.start')}: epochs have different numbers of steps "
                "with callbacks=gradient_accumulation; give a share of the run, such as "
                f"{key}.start=0.75"
            )


class Accumulation(Config):
    """Batches to an optimizer step, by epoch."""

    from_epochs: list[Annotated[int, Field(ge=0)]] = Field(description="From when; the first is 0.")
    batches: list[Count] = Field(description="How many batches make a step from then on.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why the schedule is none, or what else sets the number of batches."""
        epochs = self.from_epochs
        same_number = len(epochs) == len(self.batches)
        if not (same_number and epochs[:1] == [0] and epochs == sorted(set(epochs))):
            yield (
                f"{key}.from_epochs={epochs}: must be rising epochs from 0, with as many numbers "
                f"from 1 in batches={self.batches}, such as '{key}.from_epochs=[0,4]' "
                f"'{key}.batches=[1,2]'"
            )
        number = run.get("trainer.accumulate_grad_batches", 1)
        if number > 1:
            yield (
                f"trainer.accumulate_grad_batches={number}: callbacks=gradient_accumulation sets "
                "it from epoch to epoch; leave one of them out"
            )


class BatchSizeSearch(Config):
    """Before training: doubles the batch size until memory runs out."""

    first: int = Field(32, ge=1, description="Batch size to start with.")
    largest: int = Field(8192, ge=1, description="Batch size to stop at.")
    steps: int = Field(3, ge=1, description="Training steps with each.")
    apply: bool = Field(False, description="Train with what it finds, as with data.batch_size.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why it cannot search with this strategy, or in this range."""
        if not run.one_process:
            yield (
                "callbacks=batch_size_finder: a rank that runs out of memory leaves the others "
                f"waiting, so it is not for strategy={run.strategy}; find the size of a device "
                "with strategy=single, and multiply"
            )
        if self.first > self.largest:
            yield (
                f"{key}.first={self.first}: must be at most largest={self.largest}, such as "
                f"{key}.first=1"
            )


class LearningRateRangeTest(Config):
    """Before training: raises the learning rate step by step, and draws the loss."""

    file: str = Field(description="The PNG to draw.")
    min_lr: float = Field(gt=0, description="Where it starts.")
    max_lr: float = Field(gt=0, description="Where it ends, unless the loss has risen before.")
    steps: int = Field(100, ge=20, description="Optimizer steps between them.")
    apply: bool = Field(False, description="Train with what it suggests, as with optimizer.lr.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why its range is none."""
        if self.min_lr >= self.max_lr:
            lowest, highest = run.get(f"{key}.min_lr"), run.get(f"{key}.max_lr")
            yield (
                f"{key}.min_lr={lowest}: must be below max_lr={highest}, such as {key}.min_lr=1e-6"
            )


class KatibMetrics(Config):
    """Metrics as Katib's file collector reads them, one JSON object a line."""

    file: str = Field(description="Where; lines that are there stay.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why no file can be made there, on this node."""
        file = Path(self.file)
        there = next(place for place in (file, *file.absolute().parents) if place.exists())
        fits = there.is_file() if there == file else there.is_dir()
        if not fits or not os.access(there, os.W_OK):
            yield (
                f"{key}.file={file}: no file can be written there ({there} is in the way); give "
                f"one that can, such as {key}.file=katib.json"
            )


class NanGuard(Config):
    """Stops at the first value that is not finite, and saves what reproduces it."""

    file: str = Field(description="Where the batch is saved, with the step.")
    checkpoint: str = Field(description="Where the weights are saved.")
    every_n_steps: int = Field(1, ge=1, description="How often to look.")


class EveryNSteps(Config):
    """Logs something every so many optimizer steps."""

    every_n_steps: int = Field(50, ge=1, description="Optimizer steps between two lines.")


class StopAfter(Config):
    """Ends training after some time, in a checkpoint to resume from."""

    duration: Time = Field(description="Days:hours:minutes:seconds of training.")


class Progress(Config):
    """Shows how training goes: a bar in a terminal, plain lines elsewhere."""

    refresh_rate: int = Field(description="In a terminal: redraw every so many steps.")
    seconds_between_lines: float = Field(description="Elsewhere: time between lines in an epoch.")


class LayerTable(Config, extra="allow"):
    """Prints the layers and the number of parameters before training."""

    max_depth: int = Field(1, description="How deep to look into modules; -1 for all.")


class LearningRateMonitor(Config):
    """Lightning's: logs the learning rate of every parameter group."""

    logging_interval: Literal["step", "epoch"] | None = Field(
        None, description="When; null for the interval of each scheduler."
    )
    log_momentum: bool = Field(False, description="Log momentum, too.")
    log_weight_decay: bool = Field(False, description="Log weight decay, too.")


class Displays(Config):
    """What TensorBoard or Weights & Biases shows beside scalars."""

    writer: str = Field(description="The logger that shows it: tensorboard or wandb.")
    run_dir: str = Field(description="The run directory.")
    charts: bool = Field(False, description="Training and validation of a metric in one chart.")
    text: bool = Field(False, description="The command and the resolved configuration.")
    hparams: bool = Field(False, description="Overrides beside the final metrics.")
    graph: bool = Field(False, description="The modules and what passes between them.")
    images: int = Field(0, ge=0, description="How many training images to show.")
    learning_rates: bool = Field(False, description="One for each parameter group.")
    gradient_norm: bool = Field(False, description="That of all gradients, before clipping.")
    histograms: bool = Field(False, description="Parameters and gradients.")
    confusion_matrix: bool = Field(False, description="Counts of the validation set.")
    pr_curves: bool = Field(False, description="Precision against recall, for each class.")
    predictions: int = Field(0, ge=0, description="How many validation samples of largest loss.")
    embedding: int = Field(0, ge=0, description="How many samples to place in the projector.")
    scalars_every_n_steps: int = Field(10, ge=1, description="How often scalars are shown.")
    histograms_every_n_steps: int = Field(100, ge=1, description="How often histograms are.")
    figures_every_n_epochs: int = Field(5, ge=1, description="How often figures of validation are.")
    task_every_n_epochs: int = Field(1, ge=0, description="How often the task's `displays()` are.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why there is nothing that they could write to."""
        name = key.rpartition(".")[2]
        if not run.get(f"logger.{self.writer}"):
            yield (
                f"callbacks={name}: writes through logger.{self.writer}, which was taken away; "
                f"add +logger={self.writer}, or use '~{key}'"
            )
