"""What the commands take outside of groups: models of train.yaml, evaluate.yaml and the others."""

from collections.abc import Iterator
from os import environ
from shutil import which
from sys import platform
from typing import Annotated, Any, Literal

from pydantic import Field

from ..checkpoint.file import damage
from ..composed_run import ComposedRun
from ..config_model import Config
from ..machine import count_cores
from ..suggestions import better
from ..torch_versions import too_old
from .values import Count, Group, Seed, there

RESUMED = "last, a run directory, a checkpoint file, or leave it out"
MEASURED = "a checkpoint file, such as runs/.../checkpoints/best.ckpt"


def _damage(value: str) -> str | None:
    reason = damage(value)
    return f"is no complete checkpoint: {reason}" if reason else None


# More processes to a core only take turns, and a thousand take minutes to start.
WORKERS_TO_A_CORE = 4
WORKERS_ANYWHERE = 16
COMPILER = "clang++" if platform == "darwin" else "g++"

SEED = "Everything random follows from it: weights, order of samples, augmentation. 0 is a seed."
MONITOR = "The metric by which checkpoints, early stopping, schedulers and sweeps compare."
MODE = "Which way it is better."


class Command(Config, extra="allow"):
    """Every command. Another key is a value of one's own, for others to refer to."""

    project: str = Field("", description="Under what name runs are shown together.")
    seed: Seed = Field(0, description=SEED)
    monitor: str | None = Field(None, description=MONITOR)
    mode: Literal["min", "max"] = Field("min", description=MODE)
    paths: Group = Field(description="Where things are.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why the keys cannot go together."""
        if not run.strategy:
            return
        mode, monitor = run.get("mode"), run.get("monitor")
        way = better(str(monitor))
        if way not in (None, mode):
            yield f"mode={mode}: monitor={monitor} is better the other way; use mode={way}"
        workers, cores = run.get("data.num_workers"), count_cores()
        ranks = 1 if run.one_process else max(1, run.devices)
        most = max(WORKERS_ANYWHERE, WORKERS_TO_A_CORE * cores) // ranks
        if isinstance(workers, int) and workers > most:
            yield (
                f"data.num_workers={workers}: at most {most} for each of the ranks here ({ranks}), "
                f"as this machine has {cores} cores; use data.num_workers={min(most, cores)}"
            )
        yield from _not_compiled(run)


class _Training(Command, extra="allow"):
    seed: Seed = Field(description=SEED)
    monitor: str | None = Field(description=MONITOR)
    mode: Literal["min", "max"] = Field(description=MODE)
    task: Group = Field(description="What is learned: a LightningModule.")
    data: Group = Field(description="From what it is learned: a LightningDataModule.")
    model: Group = Field(description="The network.")
    init: Group = Field(description="How its weights are initialised.")
    optimizer: Group = Field(description="The optimizer.")
    scheduler: Group = Field(description="The schedule of the learning rate.")
    trainer: Group = Field(description="Lightning's Trainer.")
    callbacks: Group = Field({}, description="Callbacks, by name.")
    logger: Group = Field({}, description="Loggers, by name.")
    compile: Literal["none", "layer", "whole"] = Field(
        "none",
        description="What torch.compile makes code of: each layer, or the whole forward pass.",
    )
    compile_backend: str = Field("inductor", description="Of torch.compile.")
    count_labels: bool = Field(
        True,
        description="Weigh a loss of transformers among ranks by the labels it is a mean over.",
    )
    gc_every_n_steps: Count | None = Field(None, description="Collect Python's garbage in step.")


class _Parallel(Command, extra="allow"):
    strategy: Group = Field(description="How the work is shared out.")
    launch: Group = Field(description="How processes are started.")


class Train(_Training, _Parallel, extra="allow"):
    """What `python train.py` does by default."""

    checkpoint: Group = Field(description="How checkpoints are written.")
    test: bool = Field(description="Measure the best weights on the test set at the end.")
    resume: Annotated[Any, there(RESUMED, _damage)] = Field(
        description="What to resume: `last` or a run directory, in place; or a checkpoint file, "
        "in a new run."
    )


class Parity(_Training, _Parallel, extra="allow"):
    """What `python parity.py` does: some steps under a strategy beside a plain Trainer."""

    parity: Group = Field(description="How they are compared.")


class Plan(_Training, extra="allow"):
    """What `python plan.py` does: which mesh to take for a network, a batch and some devices."""

    plan: Group = Field(description="What the plan is made for.")


class Export(Command, extra="allow"):
    """What `python export.py` does: a file that runs without this project."""

    checkpoint: Annotated[Any, there(MEASURED, _damage)] = Field(description="A checkpoint file.")
    data: Group = Field({}, description="Settings of the data that may differ from training.")
    format: Literal["torch", "onnx"] = Field(
        "torch", description="A program of torch.export, or ONNX."
    )
    output: str = Field("", description="What is written.")


class Evaluate(_Parallel, extra="allow"):
    """What `python evaluate.py` does: task and data come from the checkpoint itself."""

    checkpoint: Annotated[Any, there(MEASURED, _damage)] = Field(description="A checkpoint file.")
    data: Group = Field({}, description="Settings of the data that may differ from training.")
    trainer: Group = Field(description="Lightning's Trainer.")


class Predict(Evaluate, extra="allow"):
    """What `python predict.py` does: task and data come from the checkpoint itself."""

    predict: Group = Field(description="What is predicted, and how.")


def _not_compiled(run: ComposedRun) -> Iterator[str]:
    """Why layers cannot be compiled."""
    asked = run.get("compile", "none")
    if asked == "none":
        return
    if run.get("compile_backend", "inductor") == "inductor" and not has_compiler():
        yield (
            f"compile={asked}: needs a C++ compiler, and neither $CXX nor {COMPILER} is there; "
            f"install one, such as {COMPILER}, or use compile=none"
        )
    stages = run.strategy == "pipeline" or run.get("strategy.pipeline", 1) > 1
    if asked == "whole" and stages:
        yield "compile=whole: a pipeline has some layers a rank; use compile=layer"
    if run.get("strategy.context", 1) != 1 and (old := too_old("strategy.context with compile")):
        yield old


def has_compiler() -> bool:
    """Whether there is the compiler that torch.compile looks for."""
    return which(environ.get("CXX", COMPILER)) is not None
