"""Which layers make a stage, which rank holds it, and what passes between the stages.

Exact: of all ways to partition the sequence of layers, the one whose largest stage costs least.
With several stages a rank it is still the largest stage that counts, not the rank's sum: every
stage is a step that the others wait for.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import UserError
from ..context_parallel import working_on
from ..mesh.ranks import Ranks
from .limits import idle_share
from .remote import DIVIDED, Remote, RemoteParameter, replace_tensors
from .shapes import Flags, LayerShapes, Tensors, empty

if TYPE_CHECKING:
    from .network import Network


class Partition(NamedTuple):
    """Stages of a pipeline: consecutive layers, each on one rank."""

    ranges: list[range]
    """For each stage, the indices of its layers."""
    owner: list[int]
    """For each stage, its rank in the pipeline."""
    costs: list[float]
    """For each stage, the sum of its layers' costs."""

    @classmethod
    def of(
        cls,
        costs: Sequence[float],
        *,
        num_ranks: int,
        stages_per_rank: int,
        v_shaped: bool,
        balance: Sequence[int] | str,
    ) -> "Partition":
        """Partition a sequence of layers with these costs, in any unit.

        V-shaped, the stages go from rank to rank and back, instead of round and round. The balance
        is the number of layers of each stage, or "auto".
        """
        num_stages = num_ranks * stages_per_rank
        if len(costs) < num_stages:
            raise UserError(
                f"strategy=pipeline: {len(costs)} layers cannot make {num_stages} stages "
                f"({num_ranks} ranks with {stages_per_rank} each); "
                + (
                    f"use trainer.devices={len(costs)}, or a network with more layers"
                    if len(costs) < num_ranks
                    else "use strategy.schedule=1f1b, which needs one stage a rank"
                )
            )
        if balance == "auto":
            counts = balanced(costs, num_stages)
        else:
            counts = _validated(balance, len(costs), num_stages)
        stops = list(accumulate(counts))
        ranges = [range(stop - count, stop) for count, stop in zip(counts, stops, strict=True)]
        owner = _owners(num_ranks, stages_per_rank, v_shaped)
        return cls(ranges, owner, [sum(costs[i] for i in range_) for range_ in ranges])

    @property
    def imbalance(self) -> float:
        """Cost of the largest stage over the mean; 1 is perfect."""
        return max(self.costs) * len(self.costs) / sum(self.costs)


def balanced(costs: Sequence[float], num_stages: int) -> list[int]:
    """Partition a sequence of layers so that the most expensive stage is as cheap as possible.

    Among ways that reach this minimum it takes one with a small sum of squared stage costs, an even
    one. Dynamic programming over all ways, layers² × stages steps.

    Returns:
        The number of layers of each stage, at least 1.
    """
    before = [0.0, *accumulate(costs)]
    # For the first layers, by their number: the largest stage, the sum of squares, the counts.
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for _ in range(num_stages):
        best = {
            stop: min(
                (max(largest, cost), squares + cost * cost, (*counts, stop - start))
                for start, (largest, squares, counts) in best.items()
                if start < stop
                for cost in [before[stop] - before[start]]
            )
            for stop in range(min(best) + 1, len(costs) + 1)
        }
    return list(best[len(costs)][2])


def stages_of_rank(
    rank: int, num_ranks: int, stages_per_rank: int, v_shaped: bool = False
) -> list[int]:
    """The stages that a rank holds: every `num_ranks`-th one, or, V-shaped, one down and one up."""
    owners = _owners(num_ranks, stages_per_rank, v_shaped)
    return [stage for stage, owner in enumerate(owners) if owner == rank]


def _owners(num_ranks: int, stages_per_rank: int, v_shaped: bool) -> list[int]:
    up = range(num_ranks)
    return [*up, *reversed(up)] if v_shaped else [*up] * stages_per_rank


def _validated(balance: Any, num_layers: int, num_stages: int) -> list[int]:
    counts = list(balance) if isinstance(balance, Sequence) else []
    are_counts = all(isinstance(count, int) and count >= 1 for count in counts)
    if are_counts and len(counts) == num_stages and sum(counts) == num_layers:
        return counts
    # Rounded down at each boundary, so that they add up.
    stops = [num_layers * stage // num_stages for stage in range(num_stages + 1)]
    even = [stop - start for start, stop in pairwise(stops)]
    raise UserError(
        f"strategy.balance={_written(balance)}: must be {num_stages} numbers from 1 that add up to "
        f"{num_layers} layers, such as 'strategy.balance={_written(even)}', or auto"
    )


def _written(value: Any) -> str:
    return str(value).replace(" ", "")


class Placement:
    """Which rank of a pipeline holds what of a task: the layers of its stages, by name."""

    def __init__(
        self, task: nn.Module, stages: Sequence[tuple[dict[str, nn.Module], int]], rank: int
    ) -> None:
        self._task = task
        self._stages = stages
        self._rank = rank
        _check_shared_tensors([layers for layers, _ in stages])
        owner_of = {
            id(member): owner
            for layers, owner in stages
            for layer in layers.values()
            for member in (*layer.modules(), *layer.parameters(), *layer.buffers())
        }
        # A tensor has a name for each place where it is used, or kept.
        named = (task.named_modules, task.named_parameters, task.named_buffers)
        self._owner = {
            name: owner_of[id(member)]
            for names in named
            for name, member in names(remove_duplicate=False)
            if id(member) in owner_of
        }

    def free_others(self) -> None:
        """Free the memory of other ranks' layers.

        Every module and parameter keeps its name and place, so that `configure_optimizers` and
        checkpoints know no difference; what is used, or kept, in several places stays one tensor.
        """
        others = [
            layer
            for layers, owner in self._stages
            if owner != self._rank
            for layer in layers.values()
        ]
        unset: dict[Tensor, Tensor] = {}
        for layer in others:
            for parameter in layer.parameters():
                meta = parameter.detach().to("meta")
                unset[parameter] = RemoteParameter(meta, parameter.requires_grad)
            for buffer in layer.buffers():
                unset[buffer] = buffer.to("meta").as_subclass(Remote)
        modules = {*self._task.modules(), *(module for each in others for module in each.modules())}
        replace_tensors(modules, unset)
        vars(self._task)[DIVIDED] = True

    def owner(self, name: str) -> int | None:
        """The rank that holds a parameter or buffer; None if it is in no layer, so all hold it."""
        parts = name.split(".")
        # What is kept in a part of a layer has, as a rule, a name of its own.
        places = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self._owner[at] for at in places if at in self._owner), None)


class Stages(NamedTuple):
    """The stages of a network, some of which this rank holds, and what passes between them."""

    network: "Network"
    calls: list[nn.Module]
    """For each layer the module that is called with tensors, and returns tensors."""
    partition: Partition
    modules: dict[int, nn.Module]
    """The stages of this rank, by their index."""
    shapes: LayerShapes
    ranks: Ranks

    @property
    def owner(self) -> list[int]:
        """For each stage, its rank in the pipeline."""
        return self.partition.owner

    @property
    def last(self) -> int:
        """The index of the last stage."""
        return len(self.owner) - 1

    def held(self) -> list[tuple[dict[str, nn.Module], int]]:
        """The layers of each stage, by name, and its rank in the pipeline."""
        named = list(self.network.layers.items())
        of_stages = [dict(named[layers.start : layers.stop]) for layers in self.partition.ranges]
        return list(zip(of_stages, self.owner, strict=True))

    def boundary(self, microbatch: Tensors, stage: int) -> Tensors:
        """The inputs of a stage, on the meta device; after the last one, the outputs."""
        training = torch.is_grad_enabled()
        with working_on(None):
            boundaries = self.shapes.boundaries(microbatch, training, self.trained())
        return boundaries[sum(map(len, self.partition.ranges[:stage]))]

    def trained(self) -> Flags:
        """Which parameters are trained: a callback may freeze some, or a GAN toggle them."""
        return tuple(
            p.requires_grad for layer in self.network.layers.values() for p in layer.parameters()
        )

    def parameters(self) -> list[Tensor]:
        """The parameters of this rank."""
        return [p for module in self.modules.values() for p in module.parameters()]

    def share(self, tensors: Tensors, stage: int) -> Tensors:
        """Broadcast tensors from the rank that holds a stage."""
        for tensor in tensors:
            dist.broadcast(tensor, group=self.ranks.pipeline_group, group_src=self.owner[stage])
        return tensors

    def share_outputs(self, outputs: Tensors, inputs: Tensors) -> Tensors:
        """Broadcast the outputs of the last stage for a batch."""
        if not outputs:
            shapes = self.boundary(inputs, len(self.owner))
            outputs = tuple(empty(shape, self.ranks.device) for shape in shapes)
        return self.share(outputs, self.last)


def _check_shared_tensors(stages: Sequence[dict[str, nn.Module]]) -> None:
    user: dict[int, tuple[str, int]] = {}
    for stage, layers in enumerate(stages):
        for name, layer in layers.items():
            for tensor in (*layer.parameters(), *layer.buffers()):
                other, its_stage = user.setdefault(id(tensor), (name, stage))
                if its_stage != stage:
                    what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                    raise UserError(
                        f"strategy=pipeline: layers {other} and {name} share a {what}, but are on "
                        f"stages {its_stage} and {stage}; give strategy.balance=[...] that keeps "
                        "them together, untie them, or use strategy=fsdp"
                    )


def report_partition(
    stages: Stages, title: str, schedule: str, microbatches: int, batch_size: int
) -> None:
    """Print each stage, how even they are, and the schedule of the first batch."""
    partition, layers = stages.partition, list(stages.network.layers.items())
    lines = [f"{title}: {len(partition.ranges)} stages"]
    for stage, held in enumerate(partition.ranges):
        names, parts = zip(*layers[held.start : held.stop], strict=True)
        span = f"{names[0]} … {names[-1]} ({len(names)})" if len(names) > 1 else names[0]
        parameters = sum(p.numel() for layer in parts for p in layer.parameters())
        share = partition.costs[stage] / sum(partition.costs)
        lines.append(
            f"  stage {stage}, rank {partition.owner[stage]}: {span}, {parameters:,} parameters, "
            f"{share:.1%} of the cost"
        )
    idle = idle_share(schedule, stages.ranks.sizes.pipeline, microbatches, len(partition.ranges))
    lines.append(f"  imbalance {partition.imbalance:.2f} (largest stage / mean)")
    lines.append(
        f"  {schedule}: {microbatches} micro-batches of {batch_size // microbatches}, "
        # Each rank takes as long as the slowest.
        f"predicted bubble {1 - (1 - idle) / partition.imbalance:.1%}"
    )
    print("\n".join(lines), flush=True)
