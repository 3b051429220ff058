"""Types of values that several models use, and models of groups that have no class."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ...checkpoint import remote
from ...config_model import Config, Count, Words, existing_path, missing, text
from ...strategies.pipeline.limits import Schedule

Group = Mapping[str, Any]  # a group, whose keys have a model of their own
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Folder = Annotated[str, Field(pattern=r"\S"), Words("a folder", "runs")]


def file_or_address(
    wanted: str, damage: Callable[[str], str | None] = missing, *, needed: bool = True
) -> AfterValidator:
    """Validate that a value is an existing, intact file, or an address, which is not read yet.

    Args:
        wanted: What an error asks for, with an example.
        damage: Why the file at a path cannot be used; None if it can.
        needed: Whether null is rejected.
    """

    def check(value: Any) -> Any:
        if value is None and needed:
            raise ValueError(f"must be {wanted}")
        if value is None or not remote.is_address(text(value)):
            return existing_path(value, wanted, damage)
        if reason := remote.refusal(text(value)):
            raise ValueError(reason)
        return text(value)

    return AfterValidator(check)


class Paths(Config, extra="allow"):
    """Folders that the project uses."""

    root: Folder = Field(description="The folder of the project.")
    data: Folder = Field(description="The folder of data sets.")
    runs: Folder = Field(description="The folder in which run directories are created.")
    run: Folder = Field(description="The run directory.")


class Checkpoint(Config):
    """How a training run writes checkpoints."""

    format: Literal["file", "sharded"] = Field(description="One file, or a folder of shards.")
    in_background: bool = Field(alias="async", description="Write in the background.")


class Parity(Config):
    """How a strategy is compared with a plain Trainer."""

    steps: int = Field(ge=2, description="Optimizer steps, in two epochs or more.")
    tolerance: float = Field(ge=0, lt=1, description="The largest relative difference allowed.")


class Plan(Config):
    """What `onecurve plan` plans for."""

    gpu: Literal["a100", "h100", "h100-500w", "h200", "b200", "cpu"] = Field(
        description="The device; cpu is this machine."
    )
    schedule: Literal["auto"] | Schedule = Field(description="Of pipelines; auto picks the best.")
    microbatches: Literal["auto"] | Count = Field(description="Micro-batches of a pipeline.")
    activation_checkpointing: Literal["auto", "none", "selective", "full"] = Field(
        description="One of them; auto picks the first that fits."
    )
    compile: Literal["none", "layer"] = Field(description="Whether layers are compiled.")
    free: float = Field(ge=0, lt=1, description="Share of a device's memory to leave free.")
    top: int = Field(ge=1, description="How many meshes to print.")


class Predict(Config, extra="allow"):
    """What to predict, and how. A task's own `predict` can read further options here."""

    output: str = Field(description="The file to write, without the suffix.")


class EvaluatedData(Config, extra="allow"):
    """Settings of the data that may differ from training; null keeps the checkpoint's."""

    root: str | None = Field(None, description="Folder of the files.")
    batch_size: Count | None = Field(None, description="Samples per batch, over all processes.")
    num_workers: Annotated[int, Field(ge=0)] | None = Field(None, description="0 for none.")


class Sweep(Config, extra="allow"):
    """What `-m` does."""

    on_failure: Literal["continue", "stop"] = Field(
        "continue", description="What to do after a failed job."
    )
    resume: bool = Field(True, description="Resume an interrupted sweep, or start it again.")
    parallel: int = Field(1, ge=1, description="How many jobs run at a time.")
    trials: int = Field(30, ge=1, description="In a search: the total number of trials.")
    objective: str | None = Field(None, description="In a search: the metric that is compared.")
    direction: Literal["min", "max"] = Field("min", description="In a search: which is better.")
    seed: Seed = Field(0, description="In a search: the seed of everything random.")
