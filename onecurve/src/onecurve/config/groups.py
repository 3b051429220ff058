"""What the groups without a class take: trainer, launch, paths, checkpoint, parity, plan, ..."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..composed_run import ComposedRun
from ..config_model import Config, Words, existing
from ..strategies.pipeline.limits import Schedule
from . import run_rules

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Time = Annotated[
    str,
    Field(pattern=r"^\d+:\d\d:\d\d:\d\d$"),
    Words("days:hours:minutes:seconds", "00:12:00:00"),
]
Folder = Annotated[str, Field(pattern=r"\S"), Words("a folder", "runs")]

Nodes = Annotated[
    Count | Annotated[str, Field(pattern=r"^[1-9]\d*(:[1-9]\d*)?$")],
    Words("a number of nodes, or MIN:MAX", "1:2"),
]


def _batches(value: Any) -> Any:
    """`5.0` is five batches; `1.0` is all of them, and 1 is one."""
    is_count = isinstance(value, float) and value > 1 and value.is_integer()
    return int(value) if is_count else value


Batches = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)], BeforeValidator(_batches)
]


class Trainer(Config):
    """Lightning's Trainer: names and meanings are its own."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = Field(
        description="What the run computes on; auto takes a GPU where there is one."
    )
    devices: Any = Field(
        description="Devices on this node. Without a GPU, auto is 1 for strategy=single, 2 parts "
        "of a batch for dp, and 2 processes for the others."
    )
    num_nodes: Count | Literal["auto"] = Field(description="auto: as the launcher says, else 1.")
    precision: Literal[
        "32-true",
        "bf16-mixed",
        "16-mixed",
        "bf16-true",
        "16-true",
        "64-true",
        "transformer-engine",
        "transformer-engine-float16",
    ] = Field("32-true", description="Of weights and of what is computed.")
    max_epochs: Count | Literal[-1] | None = Field(None, description="-1 for no end.")
    min_epochs: Count | None = Field(None, description="Epochs before which it does not end.")
    max_steps: Count | Literal[-1] = Field(-1, description="Optimizer steps; -1 for no end.")
    min_steps: Count | None = Field(None, description="Steps before which it does not end.")
    max_time: Time | Mapping[str, Any] | None = Field(None, description="Such as {hours:12}.")
    accumulate_grad_batches: int = Field(1, ge=1, description="Sum gradients over k batches.")
    gradient_clip_val: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Clip gradients to this norm or value."
    )
    gradient_clip_algorithm: Literal["norm", "value"] = Field(
        "norm", description="What is clipped: the norm of all gradients, or each value."
    )
    check_val_every_n_epoch: Count | None = Field(1, description="Null counts over all epochs.")
    val_check_interval: Count | Annotated[float, Field(gt=0, le=1)] | Time | None = Field(
        None, description="Within an epoch: batches, or a share of it, between two validations."
    )
    limit_train_batches: Batches | None = Field(None, description="How many, or a share of all.")
    limit_val_batches: Batches | None = Field(None, description="Likewise, of validation.")
    limit_test_batches: Batches | None = Field(None, description="Likewise, of the test.")
    limit_predict_batches: Batches | None = Field(None, description="Likewise, of predictions.")
    overfit_batches: Batches = Field(0.0, description="Train on so many batches again and again.")
    fast_dev_run: bool | Count = Field(False, description="One batch of each kind, or so many.")
    sync_batchnorm: bool = Field(False, description="BatchNorm's statistics over all ranks.")
    deterministic: bool | Literal["warn"] | None = Field(None, description="The same each time.")
    benchmark: bool | None = Field(None, description="Let cuDNN try which algorithm is fastest.")
    inference_mode: bool = Field(True, description="Evaluate under torch.inference_mode.")
    use_distributed_sampler: bool = Field(True, description="Not used: batches are global.")
    reload_dataloaders_every_n_epochs: int = Field(0, ge=0, description="Make them again.")
    detect_anomaly: bool = Field(False, description="Look for NaN in the backward pass.")
    barebones: bool = Field(False, description="Nothing beside training, to measure speed.")
    num_sanity_val_steps: int = Field(2, ge=-1, description="Validation before training; -1: all.")
    log_every_n_steps: int = Field(50, ge=1, description="Optimizer steps between two lines.")
    profiler: Literal["simple", "advanced", "pytorch"] | None = Field(
        None, description="Measure what the time goes into."
    )

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from run_rules.trainer(run, key) if run.strategy else ()


class Launch(Config):
    """How the processes of a run are started, on every node."""

    max_restarts: int = Field(ge=0, description="How often a failed run starts its ranks again.")
    debug_rank: int = Field(ge=0, description="The rank that breakpoint() stops; the others wait.")
    rendezvous: str | None = Field(description="HOST:PORT of a node, where several nodes meet.")
    nodes: Nodes | None = Field(
        None,
        description="How many nodes, or MIN:MAX that may come and go; null: trainer.num_nodes.",
    )
    node_rank: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        "auto", description="This node's number, from 0. auto: as Kubeflow says; null: torch's."
    )
    timeout_seconds: float = Field(gt=0, description="How long nodes wait for each other.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from run_rules.launch(run, key) if run.strategy else ()


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
    mirror_to: str | None = Field(description="An address to send each to: s3://bucket/path.")


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
