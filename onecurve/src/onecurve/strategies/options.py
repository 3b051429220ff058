"""The arguments of every strategy, each described once: constructors, YAML files and pages agree.

A model is the argument of its strategy's constructor (`onecurve.arguments`), validates `strategy`
on the command line, and rejects combinations that cannot run. Torch is not imported.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ..config_model import Config, Run, fields
from ..spelling import changes, no_such_key
from ..torch_versions import too_old
from .mesh.sizes import Sizes, filled
from .pipeline.limits import SCHEDULES, Schedule

Backend = Literal["auto", "gloo", "nccl"]
Recomputed = Literal["none", "selective", "full"] | bool
"""What the backward pass recomputes; the former values true and false mean full and none."""


class StrategyOptions(Config):
    """Arguments of every strategy."""

    activation_checkpointing: Recomputed = Field(
        default="none",
        description="What the backward pass recomputes: none, selective (all but matrix "
        "products) or full.",
    )

    def of_lightning(self) -> dict[str, Any]:
        """The arguments of Lightning's strategy."""
        return self.model_extra or {}

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        # Further arguments of Lightning's class are allowed, but not likely typos of known ones.
        for name in self.model_extra or ():
            if any(changes(name, each) < 3 for each in fields(type(self))):
                yield no_such_key(f"{key}.{name}", [f"{key}.{each}" for each in fields(type(self))])


class SingleOptions(StrategyOptions, extra="allow"):
    """One process on one device."""

    if TYPE_CHECKING:

        def __init__(self, **options: Any) -> None: ...


class DPOptions(SingleOptions, extra="allow"):
    """One process that splits each batch over its devices."""

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        yield from super().refusals(run, key)
        if run.accelerator == "cpu" or run.devices < 2:
            return
        # The copies that dp makes in every step lose changes to a layer's forward.
        asked = {
            f"{key}.activation_checkpointing": self.activation_checkpointing,
            "compile": run.get("compile"),
        }
        for name, value in asked.items():
            if value not in (None, "none", False):
                yield f"{name}={value}: is lost when dp copies layers to GPUs; use strategy=ddp"


class RankOptions(StrategyOptions):
    """Arguments of strategies with several processes."""

    timeout_seconds: float = Field(
        default=300, gt=0, description="How long a rank waits for the others."
    )
    backend: Backend = Field(
        default="auto",
        description="The process group backend: nccl, gloo, or auto for nccl on GPUs and gloo on "
        "CPUs.",
    )

    def of_lightning(self) -> dict[str, Any]:
        taken = {"timeout": timedelta(seconds=self.timeout_seconds), **super().of_lightning()}
        return taken if self.backend == "auto" else {"process_group_backend": self.backend, **taken}

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        yield from super().refusals(run, key)
        if self.backend == "nccl" and run.accelerator != "cuda":
            yield (
                f"{key}.backend=nccl: NCCL connects GPUs, and this run is on {run.accelerator}; "
                f"use {key}.backend=auto"
            )


class DDPOptions(RankOptions, extra="allow"):
    """A copy of the network in each process; gradients are averaged after each backward pass."""

    # As Lightning's own: the first batch may wait for a download by another rank.
    timeout_seconds: float = Field(
        default=1800, gt=0, description="How long a rank waits for the others."
    )
    find_unused_parameters: bool = Field(
        default=False, description="Allow steps to skip parameters."
    )
    gradient_as_bucket_view: bool = Field(
        default=True, description="Save memory: gradients are buffers."
    )
    static_graph: bool = Field(
        default=False, description="Promise that all steps use the same parameters."
    )
    communication_dtype: Literal["bf16", "fp16"] | None = Field(
        default=None,
        description="Send gradients as bf16 or fp16; null sends them in their own type.",
    )

    if TYPE_CHECKING:

        def __init__(self, **options: Any) -> None: ...

    def of_lightning(self) -> dict[str, Any]:
        ours = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
        return {name: getattr(self, name) for name in ours} | super().of_lightning()

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        yield from super().refusals(run, key)
        yield from _unshared_batch(run, run.world_size)


class UnitOptions(RankOptions):
    """Arguments of strategies that gather what is sharded."""

    wrap: Literal["layer"] | list[str] = Field(
        default="layer", description="What is gathered at once: layer, or class names."
    )
    forward_methods: list[str] = Field(
        default=[], description="Methods beside forward that use a module's parameters: [encode]."
    )


class ShardOptions(UnitOptions):
    """Arguments of strategies that shard parameters by FSDP2."""

    reshard_after_forward: Literal["auto"] | bool = Field(
        default="auto",
        description="Free gathered parameters between forward and backward pass; auto keeps those "
        "of the last layers, whose backward pass follows at once.",
    )
    cpu_offload: bool = Field(
        default=False, description="Keep and update shards in the CPU's memory."
    )


class LayerOptions(RankOptions):
    """Arguments of strategies that shard layers."""

    plan: Literal["auto"] | Mapping[str, str] = Field(
        default="auto", description="Styles by globs of module names."
    )


class StageOptions(RankOptions):
    """Arguments of strategies with pipelines."""

    schedule: Schedule = Field(default="1f1b", description="One of PyTorch's pipeline schedules.")
    microbatches: int = Field(
        default=4, ge=1, description="Parts of a batch; more of them idle less."
    )
    stages_per_rank: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="Stages per rank; auto takes the schedule's usual number."
    )
    balance: Literal["auto"] | list[int] = Field(
        default="auto", description="Layers of each stage, such as [7,7]."
    )

    def of_schedule(self, run: Run, key: str) -> Iterator[str]:
        """Reject settings with which a schedule cannot run.

        Any number of micro-batches will do: a run takes the nearest one that fits, and prints it.
        """
        schedule = self.schedule
        if line := too_old(f"strategy.schedule={schedule}", f"{key}.schedule={schedule}"):
            yield line
        limits = SCHEDULES[schedule]
        if limits.fixed and self.stages_per_rank not in ("auto", limits.stages_per_rank):
            yield (
                f"{key}.stages_per_rank={self.stages_per_rank}: {key}.schedule={schedule} always "
                f"has {limits.stages_per_rank}; use {key}.stages_per_rank=auto, or "
                f"{key}.schedule=interleaved_1f1b"
            )
        if limits.splits_backward:
            instead = f"{key}.schedule=interleaved_1f1b"
            if self.activation_checkpointing == "selective":
                yield (
                    f"{key}.activation_checkpointing=selective: {key}.schedule={schedule} splits "
                    "the backward pass, and would need the kept activations twice; use "
                    f"{key}.activation_checkpointing=full, or {instead}"
                )
            if run.get("compile", "none") != "none":
                yield (
                    f"compile={run.get('compile')}: {key}.schedule={schedule} splits the backward "
                    f"pass, but compiled layers cannot; use compile=none, or {instead}"
                )


class ReplicaOptions(RankOptions):
    """Arguments of strategies whose ranks are groups that hold the network once each."""

    replicas: int = Field(
        default=1, ge=1, description="Groups of ranks that each hold all of the network."
    )

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        yield from super().refusals(run, key)
        if run.world_size % self.replicas:
            yield (
                f"{key}.replicas={self.replicas}: must divide the number of ranks, "
                f"{run.world_size}, such as {key}.replicas=1"
            )
        yield from _unshared_batch(run, self.shares(run))

    def shares(self, run: Run) -> int:
        """How many ranks, or groups of them, share a batch."""
        return self.replicas


class FSDPOptions(ReplicaOptions, ShardOptions):
    """A shard of parameters, gradients and optimizer state in each process (FSDP2)."""

    def shares(self, run: Run) -> int:
        return run.world_size


class TensorOptions(ReplicaOptions, LayerOptions, UnitOptions):
    """A shard of every layer in each process."""


class PipelineOptions(ReplicaOptions, StageOptions):
    """Consecutive layers in each process, through which micro-batches pass."""

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        yield from super().refusals(run, key)
        yield from self.of_schedule(run, key)


class MeshOptions(ShardOptions, LayerOptions, StageOptions):
    """Several axes at once; their product is the number of processes."""

    replicate: int = Field(
        default=1, ge=1, description="Copies of the network, with their own samples."
    )
    pipeline: int = Field(default=1, ge=1, description="Groups of consecutive layers.")
    shard: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="Shards of every parameter; auto for the remaining processes."
    )
    context: int = Field(default=1, ge=1, description="Shards of every sequence.")
    tensor: int = Field(default=1, ge=1, description="Shards of each layer's matrices.")

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        yield from super().refusals(run, key)
        asked = {axis: getattr(self, axis) for axis in Sizes._fields}
        try:
            sizes = filled(run.world_size, **asked)
        except ValueError:
            said = {axis: size for axis, size in asked.items() if size not in (1, "auto")}
            wanted = prod(map(int, said.values()))
            more = f", or trainer.devices={wanted}" if run.num_nodes == 1 else ""
            yield (
                f"{' '.join(f'{key}.{axis}={size}' for axis, size in said.items()) or key}: "
                f"{'a multiple of ' if asked['shard'] == 'auto' else ''}{wanted} ranks are needed, "
                f"but there are {run.world_size}; use {_instead(asked, run.world_size, key)}{more}"
            )
            return
        yield from _unshared_batch(run, sizes.data_parallel)
        if sizes.pipeline == 1:
            return
        yield from self.of_schedule(run, key)
        is_sharded = sizes.shard * sizes.context * sizes.tensor > 1
        splits = SCHEDULES[self.schedule].splits_backward
        if is_sharded and splits and self.reshard_after_forward is True:
            yield (
                f"{key}.reshard_after_forward=true: {key}.schedule={self.schedule} computes "
                "gradients of weights later than those of inputs, and needs the parameters until "
                "then; use "
                f"{key}.reshard_after_forward=false, or {key}.schedule=1f1b"
            )


def _instead(asked: dict[str, int | str], ranks: int, key: str) -> str:
    """The overrides to use instead: the largest sizes that fit."""
    left = ranks
    fits = []
    for axis, size in asked.items():
        if size in (1, "auto"):
            continue
        fit = max(number for number in range(1, int(size) + 1) if left % number == 0)
        left //= fit
        if fit != size:
            fits.append(f"{key}.{axis}={fit}")
    if left > 1 and asked["shard"] != "auto":
        fits = [each for each in fits if ".shard=" not in each] + [f"{key}.shard=auto"]
    return " ".join(fits) or f"{key}.shard=auto"


def _unshared_batch(run: Run, shares: int) -> Iterator[str]:
    """Reject a global batch with fewer samples than ranks, or groups of them, that share it."""
    size = run.batch_size
    if size is not None and size < shares:
        yield (
            f"data.batch_size={size}: must be at least {shares}, because {shares} ranks share "
            f"a batch; use data.batch_size={shares}, or fewer trainer.devices"
        )
