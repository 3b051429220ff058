"""Models of the commands' own keys, outside of groups: train.yaml, evaluate.yaml and the others."""

from collections.abc import Iterator
from os import environ
from pathlib import Path
from shutil import which
from sys import platform
from typing import Annotated, Any, Literal

from pydantic import Field

from ... import machine
from ...checkpoint.file import damage, newest_checkpoint
from ...config_model import Config
from ..composed_run import ComposedRun
from ..metric_names import better
from .groups import Group, Seed, file_or_address


def _damage(value: str) -> str | None:
    if newest := newest_checkpoint(Path(value).expanduser())[0]:
        return f"is a run directory; name a file in it, such as {newest}"
    reason = damage(value)
    return f"is not a complete checkpoint: {reason}" if reason else None


Resumed = Annotated[
    Any,
    file_or_address(
        "last, a run directory, a checkpoint file, or leave it out", _damage, needed=False
    ),
]
Measured = Annotated[
    Any, file_or_address("a checkpoint file, such as runs/.../checkpoints/best.ckpt", _damage)
]

COMPILER = "clang++" if platform == "darwin" else "g++"

SIDES = {"min": "smaller", "max": "larger"}
SEED = "Determines everything random: weights, order of samples, augmentation. 0 is a seed, too."
MONITOR = "The metric that checkpoints, early stopping, schedulers and sweeps compare."
MODE = "Whether a smaller (min) or a larger (max) value of it is better."


class Command(Config, extra="allow"):
    """Keys of every command. Additional keys are values for other keys to refer to."""

    project: str = Field("", description="The name under which runs are grouped.")
    seed: Seed = Field(0, description=SEED)
    monitor: str | None = Field(None, description=MONITOR)
    mode: Literal["min", "max"] = Field("min", description=MODE)
    paths: Group = Field(description="Folders that the project uses.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Reject combinations of keys that cannot run."""
        if not run.strategy:
            return
        mode, monitor = run.get("mode"), run.get("monitor")
        way = better(str(monitor))
        if way not in (None, mode):
            yield f"mode={mode}: a {SIDES[way]} monitor={monitor} is better; use mode={way}"
        if isinstance(size := run.batch_size, int | float) and (size < 1 or size % 1):
            yield (
                f"data.batch_size={size}: must be a whole number from 1, over all ranks, such as "
                "data.batch_size=64"
            )
        most = max(64, 4 * machine.count_cores())
        if isinstance(workers := run.get("data.num_workers"), int) and workers > most:
            yield (
                f"data.num_workers={workers}: must be at most {most} on this machine, such as "
                "data.num_workers=4"
            )
        yield from _cannot_compile(run)


class _Training(Command, extra="allow"):
    seed: Seed = Field(description=SEED)
    monitor: str | None = Field(description=MONITOR)
    mode: Literal["min", "max"] = Field(description=MODE)
    task: Group = Field(description="What to learn: a LightningModule.")
    data: Group = Field(description="What to learn from: a LightningDataModule.")
    model: Group = Field({}, description="The network.")
    init: Group = Field({}, description="How its weights are initialised.")
    optimizer: Group = Field({}, description="The optimizer.")
    scheduler: Group = Field({}, description="The schedule of the learning rate.")
    trainer: Group = Field(description="Lightning's Trainer.")
    callbacks: Group = Field({}, description="Callbacks, by name.")
    logger: Group = Field({}, description="Loggers, by name.")
    compile: Literal["none", "layer", "whole"] = Field(
        "none", description="What torch.compile compiles: each layer, or the whole forward pass."
    )
    compile_backend: str = Field("inductor", description="The backend of torch.compile.")


class _Parallel(Command, extra="allow"):
    strategy: Group = Field(description="How processes and devices share the work.")
    launch: Group = Field(description="How processes are started.")


class Train(_Training, _Parallel, extra="allow"):
    """What `python train.py` does by default."""

    checkpoint: Group = Field(description="How checkpoints are written.")
    test: bool = Field(description="Evaluate the best weights on the test set at the end.")
    resume: Resumed = Field(
        description="What to resume: `last` or a run directory, in place; or a checkpoint file, "
        "in a new run."
    )


class Parity(_Training, _Parallel, extra="allow"):
    """What `onecurve parity` does: compare some steps under a strategy with a plain Trainer."""

    parity: Group = Field(description="How to compare.")


class Plan(_Training, extra="allow"):
    """What `onecurve plan` does: find a mesh for a network, a batch and a number of devices."""

    plan: Group = Field(description="What to plan for.")


class Export(Command, extra="allow"):
    """What `onecurve export` does: write a file that runs without this project."""

    checkpoint: Measured = Field(description="A checkpoint file.")
    data: Group = Field({}, description="Settings of the data that may differ from training.")
    format: Literal["torch", "onnx"] = Field(
        "torch", description="A torch.export program, or ONNX."
    )
    output: str = Field("", description="The file to write.")


class Evaluate(_Parallel, extra="allow"):
    """What `python evaluate.py` does: test a checkpoint, which contains task and data."""

    checkpoint: Measured = Field(description="A checkpoint file.")
    data: Group = Field({}, description="Settings of the data that may differ from training.")
    trainer: Group = Field(description="Lightning's Trainer.")


class Predict(Evaluate, extra="allow"):
    """What `python predict.py` does: predict with a checkpoint, which contains task and data."""

    predict: Group = Field(description="What to predict, and how.")


def _cannot_compile(run: ComposedRun) -> Iterator[str]:
    asked = run.get("compile", "none")
    if asked == "none":
        return
    if run.get("compile_backend", "inductor") == "inductor" and not has_compiler():
        yield (
            f"compile={asked}: needs a C++ compiler, and neither $CXX nor {COMPILER} is installed; "
            f"install one, such as {COMPILER}, or use compile=none"
        )
    stages = run.strategy == "pipeline" or run.get("strategy.pipeline", 1) > 1
    if asked == "whole" and stages:
        yield "compile=whole: in a pipeline a rank holds only some layers; use compile=layer"


def has_compiler() -> bool:
    """Whether the C++ compiler that torch.compile needs is installed."""
    return which(environ.get("CXX", COMPILER)) is not None
