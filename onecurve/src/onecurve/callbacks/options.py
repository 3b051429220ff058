"""The arguments of our callbacks, each described once: constructors, YAML files and pages agree.

A model is the argument of its callback's constructor (`onecurve.arguments`), validates an entry of
`callbacks` on the command line, and rejects combinations that cannot run. Torch is not imported.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ..arguments import Arguments
from ..config_model import Config, Count, Run, Time


class EarlyStoppingOptions(Arguments):
    """Ends training when a metric no longer improves."""

    monitor: str = Field(description="The metric.")
    mode: Literal["min", "max"] = Field(
        default="min", description="Whether a smaller (min) or a larger (max) value is better."
    )
    patience: int = Field(
        default=3, ge=0, description="Validations without progress before it stops."
    )
    min_delta: float = Field(
        default=0.0, description="The smallest change that counts as an improvement."
    )
    strict: bool = Field(default=True, description="Whether a missing metric is an error.")
    check_finite: bool = Field(default=True, description="Stop at a value that is not finite.")
    stopping_threshold: float | None = Field(
        default=None, description="Stop at a value better than this."
    )
    divergence_threshold: float | None = Field(
        default=None, description="Stop at a value worse than this."
    )
    check_on_train_epoch_end: bool | None = Field(
        default=None,
        description="Check at the end of training epochs instead of after validations.",
    )
    verbose: bool = Field(default=False, description="Log every check.")
    log_rank_zero_only: bool = Field(default=False, description="Log on the first rank only.")


class GradientAccumulationScheduler(Config):
    """Changes the number of accumulated batches from epoch to epoch (a callback of Lightning)."""

    scheduling: dict[int, Count] = Field(
        description="Batches per optimizer step, by the epoch from which they count."
    )

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        number = run.get("trainer.accumulate_grad_batches", 1)
        if number > 1:
            yield (
                f"trainer.accumulate_grad_batches={number}: callbacks=gradient_accumulation "
                "changes it from epoch to epoch; leave one of them out"
            )


class DeviceStatsMonitor(Config):
    """Logs memory of the first rank's GPU, and load (a callback of Lightning)."""

    cpu_stats: bool | None = Field(
        default=None, description="Log the machine's processors, by psutil; null: without a GPU."
    )


class BatchSizeFinder(Config):
    """Before training: doubles the batch size until memory runs out (a callback of Lightning)."""

    mode: Literal["power", "binsearch"] = Field(
        default="power", description="Double it, or also search between the last two."
    )
    init_val: int = Field(default=2, ge=1, description="Batch size to start with.")
    max_val: int = Field(default=8192, ge=1, description="Batch size to stop at.")
    max_trials: int = Field(default=25, ge=1, description="Batch sizes to try at most.")
    steps_per_trial: int = Field(default=3, ge=1, description="Training steps per batch size.")
    batch_arg_name: str = Field(default="batch_size", description="The attribute of the data.")
    margin: float = Field(default=0.05, ge=0, lt=1, description="What binsearch takes off again.")

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        if not run.one_process:
            yield (
                f"callbacks=batch_size_finder: strategy={run.strategy} has several processes, and "
                "a rank that runs out of memory leaves the others waiting; find the batch size of "
                "one device with strategy=single, and multiply it"
            )
        if run.get("resume"):
            yield (
                "callbacks=batch_size_finder: a resumed run goes on with its batches; add "
                "'~callbacks.batch_size_finder' and the data.batch_size that was found"
            )


class LearningRateRangeTestOptions(Arguments):
    """Before training: raises the learning rate step by step, and plots the loss."""

    file: str = Field(description="The PNG file to write.")
    min_lr: float = Field(gt=0, description="The first learning rate.")
    max_lr: float = Field(gt=0, description="The last one, unless the loss diverges earlier.")
    steps: int = Field(default=100, ge=20, description="Optimizer steps between the two.")


class KatibMetricsOptions(Arguments):
    """Writes metrics for Katib's file collector, one JSON object per line."""

    file: str = Field(description="The file; lines are appended.")


class NanGuardOptions(Arguments):
    """Stops at the first value that is not finite, and saves what reproduces it."""

    file: str = Field(description="Where to save the batch and the number of the step.")
    checkpoint: str = Field(description="Where to save the weights.")
    every_n_steps: int = Field(default=1, ge=1, description="How often to check.")


class ThroughputOptions(Arguments):
    """Logs the speed, and FLOP/s; prints a summary at the end."""

    every_n_steps: int = Field(default=50, ge=1, description="Optimizer steps between two values.")


class Timer(Config):
    """Stops training after some time (a callback of Lightning)."""

    duration: Time = Field(description="Training time, as days:hours:minutes:seconds.")
    interval: Literal["step", "epoch"] = Field(
        default="step", description="Whether it stops after a step or after an epoch."
    )
    verbose: bool = Field(default=True, description="Log when the time is over.")


class Progress(Config):
    """Shows the progress of training: a bar in a terminal, plain lines elsewhere."""

    refresh_rate: int = Field(description="In a terminal: redraw every n steps.")
    seconds_between_lines: float = Field(description="Elsewhere: seconds between two lines.")


class LayerTableOptions(Arguments, extra="allow"):
    """Prints the layers and the number of parameters before training."""

    max_depth: int = Field(
        default=1, description="How deep to descend into modules; -1 for all levels."
    )


class LearningRateMonitor(Config):
    """Logs the learning rate of every parameter group (a callback of Lightning)."""

    logging_interval: Literal["step", "epoch"] | None = Field(
        default=None, description="When; null for the interval of each scheduler."
    )
    log_momentum: bool = Field(default=False, description="Log momentum, too.")
    log_weight_decay: bool = Field(default=False, description="Log weight decay, too.")
