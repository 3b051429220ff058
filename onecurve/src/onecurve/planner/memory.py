"""Memory of each rank: what it keeps from step to step, and what a step needs."""

from collections.abc import Sequence
from typing import NamedTuple

from ..strategies.mesh.sizes import Sizes
from .layers import Conditions, Passes
from .network import Held
from .pipeline import Stages
from .request import Choice, Request


class Bytes(NamedTuple):
    """What a rank holds at the peak of a step."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    """Saved for backward passes."""
    buffers: float = 0.0
    """Of the network, such as statistics."""
    working: float = 0.0
    """Transient: gathered, received, or used at once."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def is_sharded(sizes: Sizes) -> bool:
    """Whether FSDP2 holds the parameters: wherever more is sharded than a list of layers."""
    return sizes.shard > 1 or sizes.context > 1 or sizes.tensor > 1


def conditions(request: Request, sizes: Sizes, checkpointing: str) -> Conditions:
    """How the layers of a mesh are run."""
    precision = request.network.precision
    dtype = precision.low if is_sharded(sizes) and precision.low else None
    if precision.low is None and precision.stored.itemsize != 4:
        dtype = precision.stored
    return Conditions(sizes.tensor, sizes.context, dtype, checkpointing)


def bytes_of_ranks(request: Request, sizes: Sizes, choice: Choice, stages: Stages) -> list[Bytes]:
    """What each rank of a pipeline holds; without one, the one entry stands for every rank."""
    network = request.network
    under = conditions(request, sizes, choice.checkpointing)
    chain = network.chain(under)
    samples = stages.samples
    found = []
    for rank in range(sizes.pipeline):
        own = stages.of_rank(rank)
        ranges = [stages.ranges[stage] for stage in own]
        saved = {}
        for stage, layers in zip(own, ranges, strict=True):
            by_sample, fixed = network.saved(under, layers)
            saved[stage] = by_sample * samples + fixed
        activations = max(
            sum(count * saved[stage] for stage, count in moment.items())
            for moment in stages.moments(rank)
        )
        if 0 in own:
            # Micro-batches of the inputs are views of the batch.
            activations += stages.microbatches * samples * _saved_inputs(chain, stages)
        held = network.of_layers(ranges, sizes.tensor, sizes.shard * sizes.context)
        found.append(
            _kept(request, held)._replace(
                activations=activations,
                working=_working(request, sizes, chain, held, ranges, stages),
            )
        )
    return found


def kept_at_least(request: Request, sizes: Sizes) -> float:
    """What ranks keep from step to step, on average: a lower bound for the fullest rank."""
    network = request.network
    shards = sizes.shard * sizes.context
    held = network.of_layers([range(len(network.layers))], sizes.tensor, shards)
    return _kept(request, held).total / sizes.pipeline


def _kept(request: Request, held: Held) -> Bytes:
    size = request.network.precision.stored.itemsize
    trained = held.trained * size
    return Bytes(
        parameters=held.parameters * size,
        gradients=trained,
        optimizer=trained * request.state.copies + held.tensors * request.state.bytes,
        buffers=held.buffers,
    )


def _saved_inputs(chain: Sequence[Passes], stages: Stages) -> float:
    """Bytes of a sample of the network's inputs, or views of them, that are saved."""
    for layer in stages.ranges[0]:
        each = chain[layer]
        if each.holds_input:
            return each.input_bytes
        if not each.passes_on:
            break
    return 0.0


def _working(
    request: Request,
    sizes: Sizes,
    chain: Sequence[Passes],
    held: Held,
    ranges: Sequence[range],
    stages: Stages,
) -> float:
    """An upper bound of transient memory, as peaks need not coincide.

    FSDP2 holds two gathered units, one of which is used while the next is gathered, and the full
    gradients of one; within a pipeline all units of a rank are gathered for the whole step.
    """
    network = request.network
    precision = network.precision
    low = (precision.low or precision.stored).itemsize
    stored = precision.stored.itemsize
    shards = sizes.shard * sizes.context
    samples = stages.samples
    kinds = {id(chain[i]): i for layers in ranges for i in layers}.values()
    passing = max(chain[i].most - chain[i].held[0] + chain[i].output_bytes for i in kinds)
    total = max(0.0, passing) * samples
    if shards > 1 and is_sharded(sizes):
        if sizes.pipeline > 1:
            total += held.gathered * (low + stored)
        else:
            units = sorted(
                (network.held(kind, sizes.tensor, shards).gathered for kind in network.kinds),
                reverse=True,
            )
            total += sum(units[:2]) * low + units[0] * stored
    elif sizes.replicate > 1 and sizes.pipeline == 1:
        # The buckets of DistributedDataParallel.
        total += held.trained * stored
    if sizes.pipeline > 1:
        # Received by each micro-batch; and the outputs of the batch, which every rank receives.
        last = ranges[-1][-1]
        entering = chain[ranges[0][0]].input_bytes + chain[last].output_bytes
        outputs = chain[stages.num_layers - 1].output_bytes
        is_last = last == stages.num_layers - 1
        total += (entering + outputs * (2 if is_last else 1)) * samples * stages.microbatches
    return total
