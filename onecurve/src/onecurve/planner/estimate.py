"""The estimate of a mesh: what its ranks hold and send, and how long a step takes.

A step is what its slowest rank computes, with what it must wait for: reductions of tensor and
context groups stand between computations; FSDP2's gathers and reductions run beside them, but for
the first and the last; gradients of replicas are reduced beside the backward pass, in a pipeline
after it; between the stages of a pipeline a rank waits, as the schedule's timeline says. Where
ranks share the cores of a CPU, nothing runs beside computations.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..strategies.mesh.sizes import Sizes
from . import schedules
from .hardware import MEMORY
from .layer_passes import Passes
from .links import Message, gather, group_of, reduce, send
from .memory import Bytes, bytes_of_ranks, conditions, is_sharded
from .request import Choice, Request
from .stages import Stages
from .times import LayerTimes


class Estimate(NamedTuple):
    """What is known of a mesh."""

    sizes: Sizes
    choice: Choice
    ranks: list[Bytes]
    """What each rank of a pipeline holds."""
    sent: dict[str, Message]
    """By axis, of the rank that sends most in a step."""
    idle: float
    """Share of the time in which ranks wait for other stages."""
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
    """What a mesh holds, sends and needs.

    Args:
        request: What is planned.
        sizes: Of the mesh.
        choice: How it runs.
        stages: Its pipeline.
        exact: Whether the schedule's timeline is simulated; else its closed form is taken.
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
        take = schedules.duration if exact else schedules.in_short
        length, idle = take(choice.schedule, sizes.pipeline, stages.microbatches, costs)
        busy, loops = [length, 0.0], 1
        most = max(hops, key=lambda each: each.seconds)
        stages_here = len(stages.of_rank(0))
        sent["pipeline"] = Message().plus(most, 2 * stages.microbatches * stages_here)
        # Every rank is given the outputs of the whole batch.
        whole = chain[stages.num_layers - 1].output_bytes * stages.samples * stages.microbatches
        sent["pipeline"] = sent["pipeline"].plus(send(whole, group, hardware))
    waits = _data_parallel(request, sizes, stages, busy, loops, sent)
    if sizes.pipeline > 1:
        waits += send(whole, group, hardware).seconds
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
    """Seconds that a rank waits for parameters and gradients; what it sends is added to `sent`."""
    hardware, network = request.hardware, request.network
    precision = network.precision
    low, stored = (precision.low or precision.stored).itemsize, precision.stored.itemsize
    waits = 0.0
    # What moves bytes for the ranks of a CPU are its cores, too.
    beside = (0.0, 0.0) if hardware.at_once else busy
    shard, replicate = (group_of(sizes, axis, request.per_node) for axis in ("shard", "replicate"))
    shards = shard.size
    for rank in range(sizes.pipeline):
        layers = [layer for stage in stages.of_rank(rank) for layer in stages.ranges[stage]]
        held = [network.held(network.kinds[i], sizes.tensor, shards) for i in layers]
        exposed = 0.0
        if is_sharded(sizes) and shards > 1:
            gathers = [gather(each.gathered * low, shard, hardware) for each in held]
            sums = [
                gather(each.trained * shards * stored, shard, hardware)
                if each.trained
                else Message()
                for each in held
            ]
            again = 2 if request.reshard and sizes.pipeline == 1 else 1
            total = Message()
            for one, other in zip(gathers, sums, strict=True):
                total = total.plus(one, again).plus(other)
            gathering = sum(each.seconds for each in gathers)
            reducing = sum(each.seconds for each in sums) * hardware.reduce_scatter
            if sizes.pipeline == 1:
                alone = 0.0 if hardware.at_once else gathers[0].seconds + sums[0].seconds
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
    """Seconds of the optimizer: weights and state are read and written, gradients read."""
    network, hardware = request.network, request.hardware
    shards = sizes.shard * sizes.context
    most = 0.0
    for rank in range(sizes.pipeline):
        layers = [stages.ranges[stage] for stage in stages.of_rank(rank)]
        held = network.of_layers(layers, sizes.tensor, shards)
        most = max(most, held.trained)
    moved = most * network.precision.stored.itemsize * (3 + 2 * request.state.copies)
    return moved * request.crowd / (hardware.bandwidth * MEMORY)
