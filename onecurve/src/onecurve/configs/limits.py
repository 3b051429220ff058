"""Limits of the keys that are in no group: those of train.yaml and the other scripts'."""

from collections.abc import Iterator, Mapping
from os import environ
from shutil import which
from sys import platform
from typing import Annotated, Literal, TypedDict

from ..checkpoint.address import refusal
from ..checkpoint.existing import ExistingCheckpoint
from ..composed_run import ComposedRun
from ..limits import Existing, Number
from ..machine import count_cores
from ..metric_names import better

# More processes to a core only take turns, and a thousand take minutes to start.
WORKERS_TO_A_CORE = 4
WORKERS_ANYWHERE = 16
USUAL = "clang++" if platform == "darwin" else "g++"


class Data(TypedDict, total=False):
    """What an evaluation may change of the data that its checkpoint describes."""

    batch_size: Annotated[int, Number(least=1)] | None
    num_workers: Annotated[int, Number(least=0)] | None


class Checkpoint(TypedDict, total=False):
    """How a training run writes checkpoints."""

    format: Literal["file", "sharded"]
    on_failure: Literal["continue", "stop"]
    mirror_to: str | None


class Predict(TypedDict, total=False):
    """What is predicted, and how."""

    images: Annotated[str, Existing("an image, or a folder with images in it")] | None
    figure: bool
    output: str


class Limits(TypedDict, total=False):
    """By key."""

    seed: Annotated[int, Number(least=0, most=2**32 - 1)]
    project: str
    monitor: str | None
    mode: Literal["min", "max"]
    test: bool
    resume: (
        Annotated[
            str, ExistingCheckpoint("last, a run directory, a checkpoint file, or leave it out")
        ]
        | None
    )
    checkpoint: (
        Annotated[
            str,
            ExistingCheckpoint("a checkpoint file, such as runs/.../checkpoints/best.ckpt"),
        ]
        | Checkpoint
    )
    data: Data
    predict: Predict
    compile: Literal["none", "layer", "whole"]
    compile_backend: str
    gc_every_n_steps: Annotated[int, Number(least=1)] | None
    format: Literal["torch", "onnx"]
    output: str


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the keys cannot go together."""
    mode, monitor = run.get("mode"), run.get("monitor")
    way = better(str(monitor))
    if way not in (None, mode):
        yield f"mode={mode}: monitor={monitor} is better the other way; use mode={way}"
    workers, cores = run.get("data.num_workers"), count_cores()
    ranks = 1 if run.one_process else max(1, run.devices)
    most = max(WORKERS_ANYWHERE, WORKERS_TO_A_CORE * cores) // ranks
    if isinstance(workers, int) and workers > most:
        yield (
            f"data.num_workers={workers}: at most {most} for each of the ranks here ({ranks}), as "
            f"this machine has {cores} cores; use data.num_workers={min(most, cores)}"
        )
    yield from _not_compiled(run)
    yield from _not_mirrored(run)


def _not_compiled(run: ComposedRun) -> Iterator[str]:
    """Why layers cannot be compiled."""
    asked = run.get("compile", "none")
    if asked == "none":
        return
    if run.get("compile_backend", "inductor") == "inductor" and not has_compiler():
        yield (
            f"compile={asked}: needs a C++ compiler, and neither $CXX nor {USUAL} is there; "
            f"install one, such as {USUAL}, or use compile=none"
        )
    stages = run.strategy == "pipeline" or run.get("strategy.pipeline", 1) > 1
    if asked == "whole" and stages:
        yield "compile=whole: a pipeline has some layers a rank; use compile=layer"


def _not_mirrored(run: ComposedRun) -> Iterator[str]:
    """Why checkpoints cannot be put at an address."""
    settings = run.get("checkpoint")
    address = settings.get("mirror_to") if isinstance(settings, Mapping) else None
    if address is None:
        return
    if reason := refusal(str(address)):
        yield f"checkpoint.mirror_to={address}: {reason}"


def has_compiler() -> bool:
    """Whether there is the compiler that torch.compile looks for."""
    return which(environ.get("CXX", USUAL)) is not None
