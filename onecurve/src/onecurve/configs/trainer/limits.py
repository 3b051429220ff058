"""Limits of the Trainer's arguments."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from ...limits import Number, Pattern

COMPLETE = True
"""A key that is not among these is none."""
OF = "lightning.pytorch.Trainer"
"""Whose arguments they are: its docstring explains them in an editor."""

Time = Annotated[str, Pattern(r"\d+:\d\d:\d\d:\d\d", "days:hours:minutes:seconds", "00:12:00:00")]
Share = Annotated[int, Number(least=0)] | Annotated[float, Number(least=0, most=1)]
Precision = Literal[
    "32-true",
    "bf16-mixed",
    "16-mixed",
    "bf16-true",
    "16-true",
    "64-true",
    "transformer-engine",
    "transformer-engine-float16",
]


class Limits(TypedDict, total=False):
    """By key, with Lightning's names and meanings."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"]
    num_nodes: Annotated[int, Number(least=1)] | Literal["auto"]
    devices: Any
    precision: Precision
    max_epochs: Annotated[int, Number(least=1)] | Literal[-1] | None
    min_epochs: Annotated[int, Number(least=1)] | None
    max_steps: Annotated[int, Number(least=1)] | Literal[-1]
    min_steps: Annotated[int, Number(least=1)] | None
    max_time: Time | Mapping[str, Any] | None
    accumulate_grad_batches: Annotated[int, Number(least=1)]
    gradient_clip_val: Annotated[float, Number(least=0)] | None
    gradient_clip_algorithm: Literal["norm", "value"]
    check_val_every_n_epoch: Annotated[int, Number(least=1)] | None
    val_check_interval: (
        Annotated[int, Number(least=1)] | Annotated[float, Number(above=0, most=1)] | Time | None
    )
    limit_train_batches: Share | None
    limit_val_batches: Share | None
    limit_test_batches: Share | None
    limit_predict_batches: Share | None
    overfit_batches: Share
    fast_dev_run: bool | Annotated[int, Number(least=1)]
    sync_batchnorm: bool
    deterministic: bool | Literal["warn"] | None
    benchmark: bool | None
    inference_mode: bool
    use_distributed_sampler: bool
    reload_dataloaders_every_n_epochs: Annotated[int, Number(least=0)]
    detect_anomaly: bool
    barebones: bool
    num_sanity_val_steps: Annotated[int, Number(least=-1)]
    log_every_n_steps: Annotated[int, Number(least=1)]
    profiler: Literal["simple", "advanced", "pytorch"] | None
