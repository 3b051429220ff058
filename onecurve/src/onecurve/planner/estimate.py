"""How long a step of a mesh takes: computation, and the messages that ranks wait for.

A step is what its slowest rank computes, and what that rank waits for. Collectives of tensor and
context groups stand between computations. FSDP2's gathers and reductions run beside them, except
for the first and the last. Gradients of replicas are reduced beside the backward pass, in a
pipeline after it. Between the stages of a pipeline a rank waits as its schedule says. Where ranks
share the cores of a CPU, nothing runs beside computation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..strategies.mesh.sizes import Sizes
from .hardware import MEMORY, Hardware, Message, gather, group_of, reduce, send
from .layers import BATCH, Passes
from .memory import Bytes, bytes_of_ranks, conditions, is_sharded
from .operations import Work
from .pipeline import Stages, approximate_duration, duration
from .request import Choice, Request

AXES = ("tensor", "context")


def seconds(work: Work, samples: float, hardware: Hardware) -> float:
    """Time of a pass of some samples.

    An operation takes the time of its FLOPs, or of its bytes, or, if both are small, of its launch.
    """
    if not len(work.flops):
        return 0.0
    peak = hardware.flops * np.where(work.low > 0, 1.0, hardware.in_float32)
    rate = peak * np.where(work.is_attention > 0, hardware.attention, hardware.matmul)
    computing = (work.flops - work.skipped) * samples / rate
    moving = (work.bytes * samples + work.fixed) / (hardware.bandwidth * MEMORY)
    launching = np.where((work.bytes + work.fixed + work.flops) > 0, hardware.launch, 0.0)
    return float(np.maximum(np.maximum(computing, moving), launching).sum())


class LayerTimes:
    """Seconds that layers take for a micro-batch, with the messages of their groups.

    Args:
        request: What is planned.
        sizes: Of the mesh.
        chain: The passes of the layers, and of the loss.
        samples: Of a micro-batch.
    """

    def __init__(
        self, request: Request, sizes: Sizes, chain: Sequence[Passes], samples: float
    ) -> None:
        self.request = request
        self.chain = chain
        self.samples = samples
        self.groups = {axis: group_of(sizes, axis, request.per_node) for axis in AXES}
        self._known: dict[tuple[int, int], tuple[float, dict[str, Message]]] = {}

    def forward(self, layer: int) -> float:
        """Seconds of a layer's forward pass."""
        return self._of(layer, 0)[0]

    def backward(self, layer: int) -> float:
        """Seconds of a layer's backward pass."""
        return self._of(layer, 1)[0]

    def sent(self, axis: str, layers: Sequence[int], times: int) -> Message:
        """What a rank with some layers sends along an axis in `times` micro-batches."""
        total = Message()
        for layer in layers:
            for direction in (0, 1):
                total = total.plus(self._of(layer, direction)[1][axis], times)
        return total

    def _of(self, layer: int, direction: int) -> tuple[float, dict[str, Message]]:
        passes = self.chain[layer]
        key = (id(passes), direction)
        if key not in self._known:
            work = passes.backward if direction else passes.forward
            busy = seconds(work, self.samples, self.request.hardware) * self.request.crowd
            messages = self._messages(passes, direction)
            self._known[key] = (busy + sum(each.seconds for each in messages.values()), messages)
        return self._known[key]

    def _messages(self, passes: Passes, direction: int) -> dict[str, Message]:
        hardware, traffic = self.request.hardware, passes.traffic
        scale = self.samples / BATCH
        found = {axis: Message() for axis in AXES}
        group = self.groups["tensor"]
        calls = traffic.calls[direction]
        if group.size > 1 and calls:
            reduced = reduce(traffic.reduced[direction] * scale, group, hardware)
            gathered = gather(traffic.gathered[direction] * scale, group, hardware)
            message = reduced.plus(gathered)
            # The latency of the other collectives.
            latency = 2 * hardware.latency * group.nodes * (calls - 1)
            found["tensor"] = message.plus(Message(seconds=latency))
        group = self.groups["context"]
        if group.size > 1 and traffic.keys:
            found["context"] = gather(traffic.keys * scale, group, hardware)
        return found


class Estimate(NamedTuple):
    """What a mesh holds, sends and takes."""

    sizes: Sizes
    choice: Choice
    ranks: list[Bytes]
    """What each rank of a pipeline holds."""
    sent: dict[str, Message]
    """By axis, of the rank that sends most in a step."""
    idle: float
    """The bubble: share of the time in which ranks wait for other stages."""
    seconds: float
    """Of a step."""
    flops: float
    """Of a step over all ranks, as they are counted for MFU."""

    @property
    def fullest(self) -> Bytes:
        """The rank that holds most."""
        return max(self.ranks, key=lambda each: each.total)


def estimate(
    request: Request, sizes: Sizes, choice: Choice, stages: Stages, exact: bool = True
) -> Estimate:
    """Estimate a mesh.

    Args:
        request: What is planned.
        sizes: Of the mesh.
        choice: How it is run.
        stages: Its pipeline.
        exact: Whether the timeline of the schedule is simulated; else its closed form is used.
    """
    return Estimate(
        sizes,
        choice,
        bytes_of_ranks(request, sizes, choice, stages),
        *_step(request, sizes, choice, stages, exact),
    )


def _step(
    request: Request, sizes: Sizes, choice: Choice, stages: Stages, exact: bool
) -> tuple[dict[str, Message], float, float, float]:
    hardware, network = request.hardware, request.network
    chain = network.chain(conditions(request, sizes, choice.checkpointing))
    times = LayerTimes(request, sizes, chain, stages.samples)
    groups = {axis: group_of(sizes, axis, request.per_node) for axis in sizes._fields}
    sent = dict.fromkeys(sizes._fields, Message())
    forward, backward = [], []
    for stage in range(len(stages.ranges)):
        layers = _with_loss(stages, stage, chain)
        forward.append(sum(times.forward(layer) for layer in layers))
        backward.append(sum(times.backward(layer) for layer in layers))
    for rank in range(sizes.pipeline):
        own = [layer for stage in stages.of_rank(rank) for layer in stages.ranges[stage]]
        for axis in ("tensor", "context"):
            message = times.sent(axis, own, stages.microbatches)
            sent[axis] = max(sent[axis], message, key=lambda each: each.seconds)
    idle = 0.0
    if sizes.pipeline == 1:
        busy = [forward[0], backward[0]]
        loops = stages.microbatches
    else:
        group = groups["pipeline"]
        hops = []
        for stage, held in enumerate(stages.ranges[:-1]):
            leaving = send(chain[held[-1]].output_bytes * stages.samples, group, hardware)
            hops.append(leaving)
            forward[stage] += leaving.seconds
            backward[stage + 1] += leaving.seconds
        costs = tuple(float(f"{(f + b) / 3:.4g}") for f, b in zip(forward, backward, strict=True))
        of_schedule = duration if exact else approximate_duration
        length, idle = of_schedule(choice.schedule, sizes.pipeline, stages.microbatches, costs)
        busy, loops = [length, 0.0], 1
        most = max(hops, key=lambda each: each.seconds)
        stages_here = len(stages.of_rank(0))
        sent["pipeline"] = Message().plus(most, 2 * stages.microbatches * stages_here)
        # Every rank receives the outputs of the batch.
        outputs = chain[stages.num_layers - 1].output_bytes * stages.samples * stages.microbatches
        sent["pipeline"] = sent["pipeline"].plus(send(outputs, group, hardware))
    waits = _data_parallel(request, sizes, stages, busy, loops, sent)
    if sizes.pipeline > 1:
        waits += send(outputs, group, hardware).seconds
    seconds = sum(busy) * loops + waits + _update(request, sizes, stages)
    plain = network.chain(conditions(request, Sizes(), "none"))
    by_sample = sum(float(each.forward.flops.sum() + each.backward.flops.sum()) for each in plain)
    return sent, idle, seconds, by_sample * request.batch


def _with_loss(stages: Stages, stage: int, chain: Sequence[Passes]) -> list[int]:
    layers = list(stages.ranges[stage])
    is_last = layers[-1] + 1 == stages.num_layers
    return [*layers, stages.num_layers] if is_last and len(chain) > stages.num_layers else layers


def _data_parallel(
    request: Request,
    sizes: Sizes,
    stages: Stages,
    busy: Sequence[float],
    loops: int,
    sent: dict[str, Message],
) -> float:
    """Seconds that a rank waits for parameters and gradients; `sent` is updated."""
    hardware, network = request.hardware, request.network
    precision = network.precision
    low, stored = (precision.low or precision.stored).itemsize, precision.stored.itemsize
    waits = 0.0
    # The cores of a CPU also move the bytes.
    beside = (0.0, 0.0) if hardware.shared_cores else busy
    shard, replicate = (group_of(sizes, axis, request.per_node) for axis in ("shard", "replicate"))
    shards = shard.size
    for rank in range(sizes.pipeline):
        layers = [layer for stage in stages.of_rank(rank) for layer in stages.ranges[stage]]
        held = [network.held(network.kinds[i], sizes.tensor, shards) for i in layers]
        exposed = 0.0
        if is_sharded(sizes) and shards > 1:
            gathers = [gather(each.gathered * low, shard, hardware) for each in held]
            sums = [gather(each.trained * shards * stored, shard, hardware) for each in held]
            again = 2 if sizes.pipeline == 1 else 1
            total = Message()
            for one, other in zip(gathers, sums, strict=True):
                total = total.plus(one, again).plus(other)
            gathering = sum(each.seconds for each in gathers)
            reducing = sum(each.seconds for each in sums)
            if sizes.pipeline == 1:
                alone = 0.0 if hardware.shared_cores else gathers[0].seconds + sums[0].seconds
                exposed += loops * (
                    max(0.0, gathering - beside[0])
                    + max(0.0, gathering * (again - 1) + reducing - beside[1])
                    + alone
                )
                total = Message().plus(total, loops)
            else:
                exposed += gathering + reducing
            sent["shard"] = max(sent["shard"], total, key=lambda each: each.seconds)
        if sizes.replicate > 1:
            size = sum(each.trained for each in held) * stored
            message = reduce(size, replicate, hardware)
            hidden = beside[1] if sizes.pipeline == 1 else 0.0
            last = message.seconds * held[0].trained / max(1, sum(each.trained for each in held))
            exposed += max(last, message.seconds - hidden)
            sent["replicate"] = max(sent["replicate"], message, key=lambda each: each.seconds)
        waits = max(waits, exposed)
    return waits


def _update(request: Request, sizes: Sizes, stages: Stages) -> float:
    """Seconds of the optimizer, which reads and writes weights and state, and reads gradients."""
    network, hardware = request.network, request.hardware
    shards = sizes.shard * sizes.context
    most = 0.0
    for rank in range(sizes.pipeline):
        layers = [stages.ranges[stage] for stage in stages.of_rank(rank)]
        held = network.of_layers(layers, sizes.tensor, shards)
        most = max(most, held.trained)
    moved = most * network.precision.stored.itemsize * (3 + 2 * request.state.copies)
    return moved * request.crowd / (hardware.bandwidth * MEMORY)
