"""Limits of the Trainer's arguments, and what cannot go together with a strategy."""

import json
from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, Any, Literal, TypedDict

from omegaconf import OmegaConf

from ...composed_run import ComposedRun
from ...limits import Number, Pattern
from ...machine import count_cores

COMPLETE = True
"""A key that is not among these is none."""
OF = "lightning.pytorch.Trainer"
"""Whose arguments they are: its docstring explains them in an editor."""

Time = Annotated[str, Pattern(r"\d+:\d\d:\d\d:\d\d", "days:hours:minutes:seconds", "00:12:00:00")]
TIMES = {"weeks", "days", "hours", "minutes", "seconds"}
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


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the run cannot have these devices, nodes, numbers or batches."""
    trainer, strategy = run.config.trainer, run.strategy
    if run.accelerator == "cuda" and run.most_devices == 0:
        yield (
            f"trainer.accelerator={trainer.accelerator}: no GPU is visible here; "
            "use trainer.accelerator=cpu"
        )
    if run.accelerator == "mps" and not (run.one_device and run.most_devices):
        yield (
            f"trainer.accelerator={trainer.accelerator}: Apple's GPU is for strategy=single on a "
            "Mac; use trainer.accelerator=cpu"
        )
    if run.devices < 1:
        plain: Any = OmegaConf.to_container(trainer)
        typed = json.dumps(plain["devices"]).replace('"', "")
        yield (
            f"trainer.devices={typed}: must be auto, a number from 1, or a list of GPU "
            f"numbers, such as trainer.devices={1 if run.one_device else 2}"
        )
    if run.one_device and run.devices > 1:
        yield (
            f"trainer.devices={trainer.devices}: strategy={strategy} uses one device; "
            "use trainer.devices=1, or strategy=ddp"
        )
    yield from _against_ranks(run)
    yield from _against_node(run)
    if run.one_process and run.num_nodes > 1:
        yield (
            f"trainer.num_nodes={run.num_nodes}: strategy={strategy} is one process on one node; "
            "use trainer.num_nodes=1, or strategy=ddp launch.rendezvous=HOST:PORT"
        )
    if run.devices > run.most_devices:
        serve, only_tried = run.most_devices, ""
        if run.accelerator == "cpu" and (cores := count_cores()) < run.most_devices:
            serve, only_tried = cores, f", of which more than its {cores} cores only try things out"
        yield (
            f"trainer.devices={trainer.devices}: at most {run.most_devices} for "
            f"trainer.accelerator={run.accelerator} on this machine{only_tried}; "
            f"use trainer.devices={serve}"
        )
    if run.accelerator == "cpu" and str(run.get("trainer.precision")).startswith("16-"):
        yield (
            f"trainer.precision={trainer.precision}: float16 needs a GPU; "
            "use trainer.precision=bf16-mixed on a CPU"
        )
    yield from _against_time(run)
    if run.get("trainer.limit_val_batches") == 0 and _waits_for_validation(run):
        yield (
            f"trainer.limit_val_batches=0: callbacks wait for monitor={run.get('monitor')}, "
            "which only validation logs; add monitor=train/loss mode=min"
        )
    every, epochs = run.get("trainer.check_val_every_n_epoch"), run.get("trainer.max_epochs")
    never = isinstance(every, int) and isinstance(epochs, int) and 0 < epochs < every
    if never and not run.get("trainer.fast_dev_run") and _waits_for_validation(run):
        yield (
            f"trainer.check_val_every_n_epoch={every}: there is no validation in the epochs of "
            f"trainer.max_epochs={epochs}, and callbacks wait for monitor={run.get('monitor')}; "
            f"use trainer.check_val_every_n_epoch={epochs}, or monitor=train/loss mode=min"
        )


def _against_time(run: ComposedRun) -> Iterator[str]:
    time = run.get("trainer.max_time")
    for name, number in time.items() if isinstance(time, Mapping) else ():
        if name not in TIMES or not isinstance(number, int | float) or not 0 <= number < inf:
            yield (
                f"trainer.max_time.{name}={number}: must be a number of weeks, days, hours, "
                "minutes or seconds, such as trainer.max_time={hours:12}"
            )


def _against_ranks(run: ComposedRun) -> Iterator[str]:
    ranks = run.ranks
    if ranks is None:
        return
    if run.one_process and ranks.world_size > 1:
        yield (
            f"strategy={run.strategy}: is one process, but {ranks.starter} has started "
            f"{ranks.world_size}; type the command once without it, or use strategy=ddp"
        )
    if run.num_nodes != ranks.nodes:
        yield (
            f"trainer.num_nodes={run.num_nodes}: {ranks.starter} has started {ranks.world_size} "
            f"ranks, {ranks.on_this_node} of them here; use trainer.num_nodes=auto"
        )
    if ranks.world_size % ranks.on_this_node:
        yield (
            f"trainer.devices={run.config.trainer.devices}: {ranks.starter} has started "
            f"{ranks.world_size} ranks, {ranks.on_this_node} of them here; start as many on every "
            "node, such as with --ntasks-per-node"
        )
    if run.devices != ranks.on_this_node:
        yield (
            f"trainer.devices={run.config.trainer.devices}: {ranks.starter} has started "
            f"{ranks.on_this_node} ranks on this node; use trainer.devices=auto"
        )


def _against_node(run: ComposedRun) -> Iterator[str]:
    node = run.node
    if run.ranks is not None:
        return
    alone = "PET_NNODES=1 before the command where this pod is to run it alone"
    if node.nodes and node.nodes > 1 and run.one_process:
        yield (
            f"strategy={run.strategy}: is one process, but PET_NNODES={node.nodes}: each of these "
            f"nodes would do the whole run; use strategy=ddp, or type {alone}"
        )
    elif node.nodes and run.num_nodes != node.nodes:
        yield (
            f"trainer.num_nodes={run.num_nodes}: but PET_NNODES={node.nodes} says how "
            f"many there are; use trainer.num_nodes=auto, or type {alone}"
        )
    if node.devices and run.devices != node.devices and run.devices:
        yield (
            f"trainer.devices={run.config.trainer.devices}: strategy={run.strategy} takes "
            f"{run.devices}, but PET_NPROC_PER_NODE={node.devices}; use trainer.devices=auto with "
            f"strategy=ddp, or PET_NPROC_PER_NODE={run.devices}"
        )


def _waits_for_validation(run: ComposedRun) -> bool:
    """Whether a callback waits for a metric that only validation logs."""
    callbacks = run.get("callbacks") or {}
    monitors = [str(entry.get("monitor")) for entry in callbacks.values() if entry]
    return any(monitor.startswith("val/") for monitor in monitors)
