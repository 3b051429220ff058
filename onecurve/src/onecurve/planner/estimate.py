"""What the ranks of a mesh hold and send, and how long its step takes.

A step is what its slowest rank computes, and what that rank waits for. Collectives of tensor and
context groups stand between computations. FSDP2's gathers and reductions run beside them, except
for the first and the last. Gradients of replicas are reduced beside the backward pass, in a
pipeline after it. Between the stages of a pipeline a rank waits as its schedule says. Where ranks
share the cores of a CPU, nothing runs beside computation.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..strategies.mesh.sizes import Sizes
from .hardware import MEMORY, Hardware, Message, gather, group_of, reduce, send, together
from .layers import BATCH, Conditions, Passes
from .network import Held, Request
from .operations import Work
from .pipeline import Stages, approximate_duration, duration


class Bytes(NamedTuple):
    """What a rank holds at the peak of a step.

    Activations are saved for backward passes; `working` is what is gathered, received, or used at
    once.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0
    working: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


def is_sharded(sizes: Sizes) -> bool:
    """Whether FSDP2 holds the parameters: wherever more is sharded than a list of layers."""
    return sizes.shard > 1 or sizes.context > 1 or sizes.tensor > 1


def _kept(request: Request, layers: Held) -> Bytes:
    size = request.network.precision.stored.itemsize
    trained = layers.trained * size
    return Bytes(
        parameters=layers.parameters * size,
        gradients=trained,
        optimizer=trained * request.state.copies + layers.tensors * request.state.bytes,
        buffers=layers.buffers,
    )


def _seconds(work: Work, samples: float, hardware: Hardware) -> float:
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


class Estimate:
    """A mesh and how it is run; its ranks are told apart by their place in the pipeline.

    What it holds is known at once; how long it takes, after `simulate`. For what activation
    checkpointing recomputes see `Conditions`.
    """

    idle: float  # the bubble: share of the time in which ranks wait for other stages
    seconds: float  # of a step

    def __init__(
        self, request: Request, sizes: Sizes, stages: Stages, checkpointing: str = "none"
    ) -> None:
        self.request, self.network, self.hardware = request, request.network, request.hardware
        self.sizes, self.stages, self.checkpointing = sizes, stages, checkpointing
        precision = self.network.precision
        self.low = (precision.low or precision.stored).itemsize
        self.stored = precision.stored.itemsize
        self.has_units = is_sharded(sizes) or request.fsdp
        dtype = precision.of_layers(self.has_units)
        self.conditions = Conditions(sizes.tensor, sizes.context, dtype, checkpointing)
        self.chain = self.network.chain(self.conditions)
        self.groups = {axis: group_of(sizes, axis, request.per_node) for axis in sizes._fields}
        self.shards = sizes.shard * sizes.context
        # The layers of each stage of a rank, and what the rank holds of them.
        ranks = range(sizes.pipeline)
        self.ranges = [[stages.ranges[stage] for stage in stages.of_rank(rank)] for rank in ranks]
        self.held = [
            self.network.of_layers(ranges, sizes.tensor, self.shards) for ranges in self.ranges
        ]
        # What a rank sends, by axis, of the rank that sends most.
        self.sent = dict.fromkeys(sizes._fields, Message())
        self._passes: dict[tuple[int, int], tuple[float, dict[str, Message]]] = {}

    @property
    def flops(self) -> float:
        """Those of a step over all ranks, as they are counted for MFU."""
        return self.network.flops() * self.request.batch

    @cached_property
    def fullest(self) -> Bytes:
        """What the rank holds that holds most."""
        return max(self.ranks, key=lambda each: each.total)

    @cached_property
    def ranks(self) -> list[Bytes]:
        """What each rank of a pipeline holds; without one, the one entry stands for every rank."""
        stages, ranks = self.stages, []
        samples = stages.samples
        for rank, (ranges, layers_held) in enumerate(zip(self.ranges, self.held, strict=True)):
            own_stages = stages.of_rank(rank)
            saved = {}
            for stage, layers in zip(own_stages, ranges, strict=True):
                by_sample, fixed = self.network.saved(self.conditions, layers)
                saved[stage] = by_sample * samples + fixed
            activations = max(
                sum(count * saved[stage] for stage, count in moment.items())
                for moment in stages.moments(rank)
            )
            if 0 in own_stages:
                # Micro-batches of the inputs are views of the batch.
                activations += stages.microbatches * samples * self._saved_inputs()
            kept, working = _kept(self.request, layers_held), self._working(ranges, layers_held)
            ranks.append(kept._replace(activations=activations, working=working))
        return ranks

    def _saved_inputs(self) -> float:
        """Bytes of a sample of the network's inputs, or views of them, that are saved."""
        for layer in self.stages.ranges[0]:
            each = self.chain[layer]
            if each.holds_input:
                return each.input_bytes
            if not each.passes_on:
                break
        return 0.0

    def _working(self, ranges: Sequence[range], held: Held) -> float:
        """An upper bound of transient memory, as peaks need not coincide.

        FSDP2 holds two gathered units, one of which is used while the next is gathered, and the
        full gradients of one; in a pipeline all units of a rank are gathered for the whole step.
        """
        chain, stages, sizes, samples = self.chain, self.stages, self.sizes, self.stages.samples
        kinds = {id(chain[i]): i for layers in ranges for i in layers}.values()
        passing = max(chain[i].most - chain[i].held[0] + chain[i].output_bytes for i in kinds)
        total = max(0.0, passing) * samples
        if self.shards > 1 or self.request.fsdp:
            if sizes.pipeline > 1:
                total += held.gathered * (self.low + self.stored)
            else:
                each = (self.network.held(x, sizes.tensor, self.shards) for x in self.network.kinds)
                units = sorted((unit.gathered for unit in each), reverse=True)
                total += sum(units[:2]) * self.low + units[0] * self.stored
        elif sizes.replicate > 1 and sizes.pipeline == 1:
            # The buckets of DistributedDataParallel.
            total += held.trained * self.stored
        if sizes.pipeline > 1:
            # Received by each micro-batch; and the outputs of the batch, which every rank receives.
            last = ranges[-1][-1]
            entering = chain[ranges[0][0]].input_bytes + chain[last].output_bytes
            outputs = chain[stages.num_layers - 1].output_bytes
            is_last = last == stages.num_layers - 1
            total += (entering + outputs * (2 if is_last else 1)) * samples * stages.microbatches
        return total

    def simulate(self, exact: bool = True) -> None:
        """Find how long a step takes; unless `exact`, by the closed form of a schedule."""
        sizes, stages = self.sizes, self.stages
        forward, backward = (
            [sum(self._pass(layer, direction)[0] for layer in layers) for layers in self._stages()]
            for direction in (0, 1)
        )
        for ranges in self.ranges:
            layers = [layer for each in ranges for layer in each]
            for axis in ("tensor", "context"):
                sent = together(
                    self._pass(layer, way)[1][axis] for layer in layers for way in (0, 1)
                )
                self._send(axis, Message().plus(sent, stages.microbatches))
        if sizes.pipeline == 1:
            self.idle, loops = 0.0, stages.microbatches
            seconds = (forward[0] + backward[0]) * loops
            seconds += self._data_parallel((forward[0], backward[0]), loops)
        else:
            outputs = self._to_stages(forward, backward)
            times = zip(forward, backward, strict=True)
            costs = tuple(float(f"{(there + back) / 3:.4g}") for there, back in times)
            length_of = duration if exact else approximate_duration
            length, self.idle = length_of(
                stages.schedule, sizes.pipeline, stages.microbatches, costs
            )
            seconds = length + self._data_parallel((length, 0.0), 1) + outputs
        self.seconds = seconds + self._update()

    def _stages(self) -> list[list[int]]:
        """The layers of each stage; the loss, which comes last, belongs to the last of them."""
        stages = [list(layers) for layers in self.stages.ranges]
        for layers in stages:
            if layers[-1] + 1 == self.stages.num_layers < len(self.chain):
                layers.append(self.stages.num_layers)
        return stages

    def _send(self, axis: str, message: Message) -> None:
        self.sent[axis] = max(self.sent[axis], message, key=lambda each: each.seconds)

    def _pass(self, layer: int, direction: int) -> tuple[float, dict[str, Message]]:
        """Seconds of a layer's forward (0) or backward pass (1) of a micro-batch, with messages."""
        passes = self.chain[layer]
        key = (id(passes), direction)
        if key not in self._passes:
            work = passes.backward if direction else passes.forward
            busy = _seconds(work, self.stages.samples, self.hardware) * self.request.crowd
            sent = self._messages(passes, direction)
            self._passes[key] = (busy + sum(each.seconds for each in sent.values()), sent)
        return self._passes[key]

    def _messages(self, passes: Passes, direction: int) -> dict[str, Message]:
        hardware, traffic, scale = self.hardware, passes.traffic, self.stages.samples / BATCH
        tensor, context = Message(), Message()
        group, calls = self.groups["tensor"], traffic.calls[direction]
        if group.size > 1 and calls:
            reduced = reduce(traffic.reduced[direction] * scale, group, hardware)
            gathered = gather(traffic.gathered[direction] * scale, group, hardware)
            # The latency of the other collectives.
            latency = 2 * hardware.latency * group.nodes * (calls - 1)
            tensor = reduced.plus(gathered).plus(Message(seconds=latency))
        group = self.groups["context"]
        if group.size > 1 and traffic.keys:
            context = gather(traffic.keys * scale, group, hardware)
        return {"tensor": tensor, "context": context}

    def _to_stages(self, forward: list[float], backward: list[float]) -> float:
        """Add what stages wait for each other's outputs; seconds in which the batch's are sent."""
        stages, group = self.stages, self.groups["pipeline"]
        samples, hops = stages.samples, []
        for stage, layers in enumerate(stages.ranges[:-1]):
            hop = send(self.chain[layers[-1]].output_bytes * samples, group, self.hardware)
            hops.append(hop)
            forward[stage] += hop.seconds
            backward[stage + 1] += hop.seconds
        most = max(hops, key=lambda each: each.seconds)
        hop_count = 2 * stages.microbatches * len(stages.of_rank(0))
        # Every rank receives the outputs of the batch.
        size = self.chain[stages.num_layers - 1].output_bytes * samples * stages.microbatches
        outputs = send(size, group, self.hardware)
        self.sent["pipeline"] = Message().plus(most, hop_count).plus(outputs)
        return outputs.seconds

    def _data_parallel(self, busy: tuple[float, float], loops: int) -> float:
        """Seconds that a rank waits for parameters and gradients, beside so many busy ones."""
        hardware, sizes = self.hardware, self.sizes
        # The cores of a CPU also move the bytes.
        hidden_by = (0.0, 0.0) if hardware.shared_cores else busy
        shard, replicate = self.groups["shard"], self.groups["replicate"]
        waits = 0.0
        for ranges in self.ranges:
            kinds = [self.network.kinds[layer] for layers in ranges for layer in layers]
            held = [self.network.held(kind, sizes.tensor, shard.size) for kind in kinds]
            exposed = 0.0
            if is_sharded(sizes) and shard.size > 1:
                gathers = [gather(each.gathered * self.low, shard, hardware) for each in held]
                full = [each.trained * shard.size * self.stored for each in held]
                sums = [gather(size, shard, hardware) for size in full]
                again = 2 if sizes.pipeline == 1 else 1
                gathered, reduced = together(gathers), together(sums)
                gathering, reducing = gathered.seconds, reduced.seconds
                if sizes.pipeline == 1:
                    alone = 0.0 if hardware.shared_cores else gathers[0].seconds + sums[0].seconds
                    exposed += loops * (
                        max(0.0, gathering - hidden_by[0])
                        + max(0.0, gathering * (again - 1) + reducing - hidden_by[1])
                        + alone
                    )
                else:
                    exposed += gathering + reducing
                self._send("shard", Message().plus(gathered, again * loops).plus(reduced, loops))
            if sizes.replicate > 1:
                trained = sum(each.trained for each in held)
                message = reduce(trained * self.stored, replicate, hardware)
                hidden = hidden_by[1] if sizes.pipeline == 1 else 0.0
                last = message.seconds * held[0].trained / max(1, trained)
                exposed += max(last, message.seconds - hidden)
                self._send("replicate", message)
            waits = max(waits, exposed)
        return waits

    def _update(self) -> float:
        """Seconds of the optimizer, which reads and writes weights and state, reads gradients."""
        most = max(held.trained for held in self.held)
        moved = most * self.stored * (3 + 2 * self.request.state.copies)
        return moved * self.request.crowd / (self.hardware.bandwidth * MEMORY)
