"""The rates that devices and links reach, from published figures; none is fitted to a result.

Peak FLOP/s (bf16, dense; float32), memory, its bandwidth, NVLink in one direction: NVIDIA's data
sheets. The network is one 400 Gb/s adapter a GPU (200 Gb/s for the A100), as in DGX and most
clouds' nodes. `h100-500w` is the H100 that torchtitan's published figures are from (its
docs/performance.md): 96 GB of HBM2e at 2.4 TB/s, held to 500 W.

The shares of it that are reached:

- matrix products: the largest rate that S. Bekman measured ("Machine Learning Engineering", table
  of Maximum Achievable Matmul FLOPS): A100 0.859, H100 and H200 0.803, B200 0.776.
- attention: FlashAttention-2, which PyTorch has, reaches 0.35 of an H100 (J. Shah et al.,
  "FlashAttention-3", 2024), and about 0.65 of an A100 (T. Dao, "FlashAttention-2", 2023: 0.5 to
  0.73).
- memory: copies reach 0.9 of the bandwidth.
- links: 0.8, as ring collectives of large messages in nccl-tests (360 of 450 GB/s on eight H100).
- power: where a limit is below the processor's own, products and attention slow down. Dynamic power
  goes about with the cube of the clock, whose voltage follows it: (500 / 700) ** (1 / 3).
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from ..machine import count_cores
from ..strategies.mesh.sizes import Sizes

ATTENTION_ON_HOPPER = 0.35
LINKS = 0.8
MEMORY = 0.9


class Hardware(NamedTuple):
    """A kind of device, and the links within a node and between nodes."""

    flops: float  # peak per second, in bf16, without sparsity
    memory: float  # bytes
    bandwidth: float  # peak bytes per second of its memory
    inside: float  # peak bytes per second that it sends within its node
    between: float  # peak bytes per second that it sends to other nodes
    matmul: float  # the share of `flops` that matrix products reach in bf16
    attention: float  # the share that fused attention reaches
    in_float32: float
    """The share of `flops` in float32, without TF32, which PyTorch does not use by default."""
    per_node: int = 8
    launch: float = 4e-6  # seconds that an operation takes at least
    latency: float = 10e-6  # seconds that a collective takes at least, for each node that it spans
    links: float = LINKS  # the share of the links' peak that is reached
    shared_cores: int = 0
    """The cores of a CPU, which its ranks share for computation and messages; 0 for GPUs."""


AT_500_WATTS = (500 / 700) ** (1 / 3)  # the clock of an H100

HARDWARE = {
    "a100": Hardware(312e12, 80e9, 2.04e12, 300e9, 25e9, 0.859, 0.65, 0.0625),
    "h100": Hardware(989.4e12, 80e9, 3.35e12, 450e9, 50e9, 0.803, ATTENTION_ON_HOPPER, 0.068),
    "h100-500w": Hardware(
        *(989.4e12, 96e9, 2.4e12, 450e9, 50e9),
        matmul=0.803 * AT_500_WATTS,
        attention=ATTENTION_ON_HOPPER * AT_500_WATTS,
        in_float32=0.068,
    ),
    "h200": Hardware(989.4e12, 141e9, 4.8e12, 450e9, 50e9, 0.803, ATTENTION_ON_HOPPER, 0.068),
    "b200": Hardware(2250e12, 180e9, 8e12, 900e9, 50e9, 0.776, ATTENTION_ON_HOPPER, 0.036),
}


def cpu() -> Hardware:
    """This machine, whose ranks are processes that share its cores and communicate over gloo.

    The orders of magnitude of one core with AVX2.
    """
    memory = 16e9  # on Windows
    if hasattr(os, "sysconf"):
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return Hardware(
        *(6e10, memory, 1e10, 1e9, 1e8),
        matmul=0.7,
        attention=0.3,
        in_float32=1.0,
        per_node=10**6,
        launch=8e-6,
        latency=2e-4,
        links=1.0,
        shared_cores=count_cores(),
    )


def named(gpu: str) -> Hardware:
    """The device of `plan.gpu`."""
    return cpu() if gpu == "cpu" else HARDWARE[gpu]


class Group(NamedTuple):
    """Ranks that communicate: those of one axis, or of several adjacent ones."""

    size: int
    on_a_node: int  # how many of them share a node

    @property
    def nodes(self) -> int:
        return -(-self.size // self.on_a_node)


class Message(NamedTuple):
    """What a rank sends, and how long it takes."""

    inside: float = 0.0  # bytes to ranks of its node
    between: float = 0.0  # bytes to other nodes
    seconds: float = 0.0

    def plus(self, other: "Message", times: float = 1.0) -> "Message":
        """This message, and `times` times another."""
        return Message(*(a + times * b for a, b in zip(self, other, strict=True)))


def together(messages: Iterable[Message]) -> Message:
    """Several messages, one after the other."""
    return Message(*map(sum, zip(*messages, strict=True)))


def group_of(sizes: Sizes, axis: str, per_node: int) -> Group:
    """The group of an axis; that of `shard` includes `context`, as both shard parameters."""
    stride = {
        "tensor": 1,
        "context": sizes.tensor,
        "shard": sizes.tensor,
        "pipeline": sizes.tensor * sizes.context * sizes.shard,
        "replicate": sizes.tensor * sizes.context * sizes.shard * sizes.pipeline,
    }[axis]
    size = sizes.shard * sizes.context if axis == "shard" else getattr(sizes, axis)
    return Group(size, max(1, min(size, per_node // stride)))


def gather(size: float, group: Group, hardware: Hardware) -> Message:
    """An all-gather of `size` bytes, or a reduce-scatter of as many, as a ring.

    Each node has a network adapter for each of its ranks.
    """
    if group.size == 1 or not size:
        return Message()
    share = size / group.size
    sent = share * (group.size - 1)
    to_nodes = share * (group.size - group.on_a_node) / group.on_a_node if group.nodes > 1 else 0.0
    seconds = max(
        sent / (hardware.inside * hardware.links) if group.on_a_node > 1 else 0.0,
        to_nodes / (hardware.between * hardware.links),
    )
    return Message(max(0.0, sent - to_nodes), to_nodes, seconds + hardware.latency * group.nodes)


def reduce(size: float, group: Group, hardware: Hardware) -> Message:
    """An all-reduce of `size` bytes."""
    return Message().plus(gather(size, group, hardware), 2)


def send(size: float, group: Group, hardware: Hardware) -> Message:
    """`size` bytes from a rank to the next of its group."""
    if group.size == 1:
        return Message()
    crosses = group.nodes > 1
    rate = (hardware.between if crosses else hardware.inside) * hardware.links
    seconds = size / rate + hardware.latency
    return Message(0.0, size, seconds) if crosses else Message(size, 0.0, seconds)
