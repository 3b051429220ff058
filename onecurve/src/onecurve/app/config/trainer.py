"""The models of `trainer` and of `launch`: devices, and how their processes start."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...config_model import Config, Count, Time
from ...launch import forkserver
from ...launch.nodes import torchrun_command
from ...machine import count_cores, full_precision_name
from ..composed_run import ComposedRun
from ..metric_names import of_validation

Batches = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)]


class Trainer(Config):
    """Arguments of Lightning's Trainer, with its names and meanings."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = Field(
        description="The hardware to use; auto takes a GPU if there is one."
    )
    devices: Any = Field(
        description="Devices on this node. Without a GPU, auto is 1 for strategy=single, 2 parts "
        "of a batch for dp, and 2 processes for the others."
    )
    num_nodes: Count | Literal["auto"] = Field(description="auto: the launcher's number, or 1.")
    precision: Annotated[
        Literal[
            "32-true",
            "bf16-mixed",
            "16-mixed",
            "bf16-true",
            "16-true",
            "64-true",
            "transformer-engine",
            "transformer-engine-float16",
        ],
        BeforeValidator(full_precision_name),
    ] = Field("32-true", description="Of weights and computations; also 16, 32, 64 or bf16.")
    max_epochs: Count | Literal[-1] | None = Field(None, description="-1 for no limit.")
    min_epochs: Count | None = Field(None, description="The minimal number of epochs.")
    max_steps: Count | Literal[-1] = Field(-1, description="Optimizer steps; -1 for no limit.")
    min_steps: Count | None = Field(None, description="The minimal number of optimizer steps.")
    max_time: Mapping[str, float] | Time | None = Field(None, description="Such as {hours:12}.")
    accumulate_grad_batches: int = Field(
        1, ge=1, le=2**31, description="Sum gradients over k batches."
    )
    gradient_clip_val: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Clip gradients to this norm or value."
    )
    gradient_clip_algorithm: Literal["norm", "value"] = Field(
        "norm", description="What is clipped: the norm of all gradients, or each value."
    )
    check_val_every_n_epoch: Count | None = Field(
        1, description="Epochs between validations; null lets val_check_interval span epochs."
    )
    val_check_interval: Count | Annotated[float, Field(gt=0, le=1)] | Time | None = Field(
        None, description="Batches, or a share of an epoch, between two validations."
    )
    limit_train_batches: Batches | None = Field(None, description="A number, or a share of all.")
    limit_val_batches: Batches | None = Field(None, description="Likewise, in validation.")
    limit_test_batches: Batches | None = Field(None, description="Likewise, in the test.")
    limit_predict_batches: Batches | None = Field(None, description="Likewise, in prediction.")
    overfit_batches: Batches = Field(
        0.0, description="Train on this number, or share, of batches only."
    )
    fast_dev_run: bool | Count = Field(False, description="Run one batch of each kind, or n.")
    sync_batchnorm: bool = Field(
        False, description="BatchNorm has the statistics of the global batch; not in a pipeline."
    )
    deterministic: bool | Literal["warn"] | None = Field(
        None, description="Use deterministic algorithms only."
    )
    benchmark: bool | None = Field(None, description="Let cuDNN find the fastest algorithms.")
    inference_mode: bool = Field(True, description="Evaluate under torch.inference_mode.")
    use_distributed_sampler: bool = Field(True, description="Not used: batches are global.")
    reload_dataloaders_every_n_epochs: int = Field(0, ge=0, description="0 for never.")
    detect_anomaly: bool = Field(False, description="Look for NaN in the backward pass.")
    barebones: bool = Field(False, description="Nothing but training, to measure speed.")
    num_sanity_val_steps: int = Field(2, ge=-1, description="Validation before training; -1: all.")
    log_every_n_steps: int = Field(50, ge=1, description="Optimizer steps between two logs.")
    profiler: Literal["simple", "advanced", "pytorch"] | None = Field(
        None, description="Measure where the time goes."
    )

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if not run.strategy:
            return
        is_for_mps = run.accelerator != "mps" or run.one_device
        if run.accelerator != "cpu" and not (run.most_devices and is_for_mps):
            yield (
                f"trainer.accelerator={self.accelerator}: strategy={run.strategy} can use no GPU "
                "here; use trainer.accelerator=cpu"
            )
        if run.devices < 1:
            typed = json.dumps(self.devices).replace('"', "")
            yield (
                f"trainer.devices={typed}: must be auto, a number from 1, or a list of GPU "
                f"numbers, such as trainer.devices={1 if run.one_device else 2}"
            )
        if run.one_device and run.devices > 1:
            yield (
                f"trainer.devices={self.devices}: strategy={run.strategy} uses one device; "
                "use trainer.devices=1, or strategy=ddp"
            )
        yield from _against_ranks(run)
        yield from _against_node(run)
        if run.one_process and run.num_nodes > 1:
            yield (
                f"trainer.num_nodes={run.num_nodes}: strategy={run.strategy} is one process on "
                "one node; use trainer.num_nodes=1, or start strategy=ddp by torchrun on each node"
            )
        if run.devices > run.most_devices:
            cores = count_cores() if run.accelerator == "cpu" else run.most_devices
            yield (
                f"trainer.devices={self.devices}: at most {run.most_devices} for "
                f"trainer.accelerator={run.accelerator} on this machine; "
                f"use trainer.devices={min(cores, run.most_devices)}"
            )
        if run.accelerator == "cpu" and self.precision.startswith("16-"):
            yield (
                f"trainer.precision={self.precision}: float16 needs a GPU; "
                "use trainer.precision=bf16-mixed on a CPU"
            )
        every, epochs = self.check_val_every_n_epoch or 1, self.max_epochs or 0
        if self.limit_val_batches == 0:
            yield from _without_validation(run, "limit_val_batches", 1.0)
        elif 0 < epochs < every and not self.fast_dev_run:
            yield from _without_validation(run, "check_val_every_n_epoch", epochs)


def _without_validation(run: ComposedRun, key: str, usable: float) -> Iterator[str]:
    callbacks = run.get("callbacks") or {}
    if any(entry and of_validation(str(entry.get("monitor"))) for entry in callbacks.values()):
        yield (
            f"trainer.{key}={run.get(f'trainer.{key}')}: there is no validation, but callbacks "
            f"need monitor={run.get('monitor')}; use trainer.{key}={usable}, or "
            "monitor=train/loss mode=min"
        )


def _against_ranks(run: ComposedRun) -> Iterator[str]:
    ranks = run.ranks
    if ranks is None:
        return
    if run.one_process and ranks.world_size > 1:
        yield (
            f"strategy={run.strategy}: needs one process, but {ranks.starter} has started "
            f"{ranks.world_size}; run the command once without it, or use strategy=ddp"
        )
    are_equal = ranks.world_size % ranks.on_this_node == 0
    if not are_equal or (run.num_nodes, run.devices) != (ranks.nodes, ranks.on_this_node):
        yield (
            f"trainer.num_nodes={run.num_nodes} trainer.devices={run.config.trainer.devices}: "
            f"{ranks.starter} has started {ranks.world_size} ranks, {ranks.on_this_node} of them "
            "here; start equally many on every node, such as by --ntasks-per-node, and use "
            "trainer.num_nodes=auto trainer.devices=auto"
        )


def _against_node(run: ComposedRun) -> Iterator[str]:
    node = run.node
    if run.ranks is not None or not (node.nodes or node.devices):
        return
    nodes = node.nodes or run.num_nodes
    devices = (node.devices or run.devices) if run.devices else 0
    is_too_few = run.one_process and (node.nodes or 1) > 1
    if is_too_few or (run.num_nodes, run.devices) != (nodes, devices):
        yield (
            f"strategy={run.strategy} trainer.num_nodes={run.num_nodes} "
            f"trainer.devices={run.config.trainer.devices}: PET_NNODES={nodes} and "
            f"PET_NPROC_PER_NODE={devices} ask for other processes; use strategy=ddp "
            "trainer.num_nodes=auto trainer.devices=auto, or put PET_NNODES=1 "
            f"PET_NPROC_PER_NODE={run.devices or 1} before the command"
        )


class Launch(Config):
    """How the processes of a run are started, on every node."""

    max_restarts: int = Field(ge=0, description="How often a failed run restarts its ranks.")
    debug_rank: int = Field(ge=0, description="The rank that breakpoint() stops; the others wait.")
    timeout_seconds: float = Field(
        gt=0, description="How long ranks that torchrun or srun has started wait for each other."
    )

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        if not run.strategy:
            return
        several = not run.one_process and run.world_size > 1
        if several and run.ranks is None and not forkserver.is_here():
            yield (
                f"strategy={run.strategy}: starts its processes by {forkserver.MISSING}; "
                f"use strategy=single or strategy=dp, or {forkserver.ELSEWHERE}"
            )
        if self.debug_rank and self.debug_rank >= max(1, run.world_size):
            yield (
                f"launch.debug_rank={self.debug_rank}: this run has the ranks 0 to "
                f"{run.world_size - 1}; use one of them, such as launch.debug_rank=0"
            )
        is_alone = run.ranks is None and run.node.nodes in (None, 1)
        if run.num_nodes > 1 and is_alone and not run.one_process:
            yield (
                f"trainer.num_nodes={run.num_nodes}: torchrun or srun starts the ranks of several "
                f"nodes; type on each, with --node-rank=0, 1, ... and node 0 as HOST: "
                f"{torchrun_command(run.num_nodes, run.devices)}"
            )
