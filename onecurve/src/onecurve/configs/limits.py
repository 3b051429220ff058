"""Limits of the keys that are in no group: those of train.yaml and the other scripts'."""

from typing import Annotated, Literal, TypedDict

from ..checkpoint.existing import ExistingCheckpoint
from ..limits import Existing, Number


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
