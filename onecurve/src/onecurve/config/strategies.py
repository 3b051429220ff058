"""What the strategies take: models of `strategy`, by class."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from ..composed_run import ComposedRun
from ..config_model import Config
from ..strategies.pipeline.limits import Schedule
from . import strategy_rules

Backend = Literal["auto", "gloo", "nccl"]
Recomputed = Literal["none", "selective", "full"] | bool


class Strategy(Config):
    """Every strategy."""

    name: str = Field(description="Its name; a fact, and not a choice.")
    processes: str = Field(description="How many processes it is; a fact, and not a choice.")
    activation_checkpointing: Recomputed = Field(
        "none",
        description="What a backward pass computes again: none, selective (all but matrix "
        "products) or full.",
    )


class Single(Strategy, extra="allow"):
    """One process on one device."""


class DP(Single, extra="allow"):
    """One process on all devices, over which each batch is split."""

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from strategy_rules.dp(run, key)


class Ranks(Strategy):
    """Strategies of several processes."""

    timeout_seconds: float = Field(300, gt=0, description="How long a rank waits for the others.")
    backend: Backend = Field(
        "auto",
        description="What carries what ranks send: nccl, gloo, or auto for nccl on GPUs and gloo "
        "on CPUs.",
    )

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from strategy_rules.process_group(run, key)


class DDP(Ranks, extra="allow"):
    """A copy of the network in each process; gradients are averaged after each backward pass."""

    find_unused_parameters: bool = Field(False, description="Look for some in each step.")
    gradient_as_bucket_view: bool = Field(True, description="Gradients are what is sent.")
    static_graph: bool = Field(False, description="Every step uses the same parameters.")
    communication_dtype: Literal["bf16", "fp16"] | None = Field(
        None, description="Send gradients as bf16 or fp16; null sends them as they are."
    )

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from strategy_rules.ddp(run, key)


class _Sharding(Ranks):
    wrap: str | list[str] = Field("layer", description="A unit: layer, min_params, or classes.")
    min_params: int = Field(1000000, ge=1, description="For wrap=min_params: size of a unit.")
    reshard_after_forward: Literal["auto"] | bool = Field(
        "auto",
        description="Free gathered parameters between forward and backward pass; auto keeps the "
        "last ones, whose backward pass follows at once.",
    )
    cpu_offload: bool = Field(False, description="Keep and update shards in the CPU's memory.")


class _Tensors(Ranks):
    plan: str | Mapping[str, str] = Field("auto", description="Styles by globs of module names.")
    sequence: bool = Field(False, description="Shard along the sequence between sharded layers.")


class _Stages(Ranks):
    schedule: Schedule = Field("1f1b", description="One of PyTorch's pipeline schedules.")
    microbatches: int = Field(4, ge=1, description="Parts of a batch: the more, the less idle.")
    stages_per_rank: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Stages of a rank; auto takes what the schedule is made for."
    )
    balance: str | list[int] = Field("auto", description="Layers of each stage, such as [7,7].")
    split: list[str] | None = Field(
        None,
        description="Modules with which layers begin, such as [net.down2,net.up1]; null where the "
        "network is a sequence of layers or of blocks.",
    )


class FSDP(_Sharding):
    """A shard of parameters, gradients and optimizer state in each process (FSDP2)."""

    replicas: int = Field(1, ge=1, description="Groups of ranks that hold all shards each.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from strategy_rules.fsdp(run, key)


class Tensor(_Tensors):
    """A part of every layer in each process."""

    replicas: int = Field(1, ge=1, description="Groups of ranks that hold all layers each.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from strategy_rules.tensor(run, key)


class Pipeline(_Stages):
    """Consecutive layers in each process, through which micro-batches pass."""

    replicas: int = Field(1, ge=1, description="Pipelines side by side, which share the batch.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from strategy_rules.pipeline(run, key)


class Mesh(_Sharding, _Tensors, _Stages):
    """Several axes at once; their product is the number of processes."""

    replicate: int = Field(1, ge=1, description="Copies of the network, with their own samples.")
    pipeline: int = Field(1, ge=1, description="Parts of the sequence of layers.")
    shard: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Parts of every parameter; auto for the processes that are left."
    )
    context: int = Field(1, ge=1, description="Parts of every sequence of positions.")
    tensor: int = Field(1, ge=1, description="Parts of each layer.")

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        yield from strategy_rules.mesh(run, key)
