"""What the other groups without a class take: paths, checkpoint, parity, plan, ..."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ..config_model import Config, existing
from ..strategies.pipeline.limits import Schedule
from .values import Address, Count, Folder, Seed


class Paths(Config, extra="allow"):
    """Where things are."""

    root: Folder = Field(description="The folder of the project.")
    data: Folder = Field(description="Where data sets are.")
    runs: Folder = Field(description="Where run directories are made.")
    run: Folder = Field(description="The run directory.")


class Checkpoint(Config, extra="allow"):
    """How a training run writes checkpoints."""

    format: Literal["file", "sharded"] = Field(description="One file, or a folder of ranks' parts.")
    in_background: bool = Field(alias="async", description="Write in the background.")
    on_failure: Literal["continue", "stop"] = Field(description="If one cannot be written.")
    mirror_to: Address | None = Field(description="An address to send each to: s3://bucket/path.")


class Parity(Config):
    """How a strategy is compared with a plain Trainer."""

    steps: int = Field(ge=2, description="Optimizer steps, in two epochs or more.")
    tolerance: float = Field(ge=0, lt=1, description="The largest relative difference allowed.")


class Plan(Config):
    """What a plan is made for."""

    gpu: Literal["a100", "h100", "h100-500w", "h200", "b200", "cpu"] = Field(
        description="The device; cpu is this machine."
    )
    schedule: Literal["auto"] | Schedule = Field(description="Of pipelines; auto takes the best.")
    microbatches: Literal["auto"] | Count = Field(description="Parts of a batch in a pipeline.")
    activation_checkpointing: Literal["auto", "none", "selective", "full"] = Field(
        description="The first that fits, or one of them."
    )
    compile: Literal["none", "layer"] = Field(description="Whether layers are compiled.")
    free: float = Field(ge=0, lt=1, description="Share of a device's memory that is left.")
    top: int = Field(ge=1, description="How many meshes are printed.")


class Predict(Config, extra="allow"):
    """What is predicted, and how. A task's own `predict` reads other options here."""

    output: str = Field(description="What is written, without the suffix.")
    images: Annotated[Any, existing("an image, or a folder with images in it")] = Field(
        None, description="Null for the samples of the data themselves."
    )
    figure: bool = Field(False, description="Draw these images with their classes on one sheet.")


class EvaluatedData(Config, extra="allow"):
    """Settings of the data that may differ from training; null keeps the checkpoint's."""

    root: str | None = Field(None, description="Where the files are.")
    batch_size: Count | None = Field(None, description="Samples in a batch, over all processes.")
    num_workers: Annotated[int, Field(ge=0)] | None = Field(None, description="0 for none.")


class Sweep(Config, extra="allow"):
    """What `-m` does."""

    on_failure: Literal["continue", "stop", "retry"] = Field(
        "continue", description="What a failed job does to the others; retry tries it again."
    )
    retries: int = Field(1, ge=0, description="For on_failure=retry: how often.")
    resume: bool = Field(True, description="Resume a sweep that was interrupted, or start again.")
    parallel: int = Field(1, ge=1, description="How many jobs run at a time.")
    trials: int = Field(30, ge=1, description="Of a search: how many trials there are in the end.")
    value: Literal["last", "best"] = Field("last", description="Of a search: which value counts.")
    seed: Seed = Field(0, description="Of a search: everything random in it.")
