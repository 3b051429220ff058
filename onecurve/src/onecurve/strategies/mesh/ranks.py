"""The ranks of a run on a mesh of five axes: which of them this one is, and what they send."""

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .sizes import Sizes, filled


class Ranks:
    """This rank among the others, once they have met.

    Args:
        asked: By axis how many ranks, of which one may be "auto": what the others leave.
        rank: Of this process.
        world_size: How many ranks there are.
        device: Where this rank computes.
        timeout: How long a rank waits for the others in a collective before it fails.

    Attributes:
        sizes: Of the axes.
        coordinates: Which of the ranks along each axis this one is.
        samples_group: The ranks that hold the same parameters and see different samples.
        context_group: The ranks that have pieces of the same sequences; None if they are whole.
        stage_group: The ranks that share the same layers, each with its part of them.
    """

    context_group: dist.ProcessGroup | None = None

    def __init__(
        self,
        asked: Mapping[str, int | Literal["auto"]],
        rank: int,
        world_size: int,
        device: torch.device,
        timeout: timedelta | None,
    ) -> None:
        self.sizes = filled(world_size, **asked)
        self.coordinates = self.sizes.coordinates(rank)
        self.rank = rank
        self.device = device
        self._timeout = timeout
        world = cast(dist.ProcessGroup, dist.group.WORLD)
        if dist.get_backend() == "gloo":  # which cannot split a group that is bound to a GPU
            world.bound_device_id = None
        self.samples_group = self.group_of("replicate", "shard")
        if self.sizes.context > 1:
            self.context_group = self.group_of("context")
        self.stage_group = self.group_of("replicate", "shard", "context", "tensor")

    def group_of(self, *axes: str, backend: str | None = None) -> dist.ProcessGroup:
        """A new group of the ranks that differ from this one in nothing but in these axes."""
        groups = self.sizes.groups(*axes)
        if len(groups) == 1 and backend is None:
            return cast(dist.ProcessGroup, dist.group.WORLD)
        made = [dist.new_group(ranks, self._timeout, backend) for ranks in groups]
        mine = next(i for i, ranks in enumerate(groups) if self.rank in ranks)
        return cast(dist.ProcessGroup, made[mine])

    @cached_property
    def pipeline_group(self) -> dist.ProcessGroup:
        """The ranks of one pipeline, each with layers of its own. All ranks ask for it at once."""
        return self.group_of("pipeline")

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The mesh on which parameters are sharded: replicate, pipeline, shard, tensor.

        Of these it has the axes of several ranks, and shard, which takes context in: what is
        gathered to be used may as well lie on ranks that see other positions.
        """
        sizes = self.sizes
        shape = sizes._replace(shard=sizes.shard * sizes.context, context=1)._asdict()
        axes = {axis: size for axis, size in shape.items() if size > 1 or axis == "shard"}
        return init_device_mesh(self.device.type, tuple(axes.values()), mesh_dim_names=tuple(axes))

    @property
    def data_parallel_rank(self) -> int:
        """Which share of a batch this rank sees."""
        return self.coordinates.replicate * self.sizes.shard + self.coordinates.shard

    @property
    def draw_apart(self) -> bool:
        """Whether ranks draw different numbers in their steps.

        Stages, and ranks with other positions, draw each for their part of a step.
        """
        return self.sizes.data_parallel * self.sizes.pipeline * self.sizes.context > 1

    @property
    def is_first_of_stage(self) -> bool:
        """Whether this rank is the first of those that hold the same layers."""
        return self.coordinates._replace(pipeline=0) == Sizes(0, 0, 0, 0, 0)

    @torch.no_grad()
    def copy_first(self, *tensors: Tensor, group: Any = None) -> None:
        """Let tensors be those of the first rank of a group, by default of the stage's.

        One at a time: the whole network may not fit on one device.
        """
        for tensor in tensors:
            on_device = tensor.to(self.device).contiguous()
            dist.broadcast(on_device, group=group or self.stage_group, group_src=0)
            tensor.copy_(on_device)

    def all_agree(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks of the world, or any of them, say yes."""
        votes = torch.tensor(int(decision), device=self.device)
        dist.all_reduce(votes)
        return bool(votes == dist.get_world_size()) if all else bool(votes)


def each_rank_has(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """What each rank of a group has, in their order; all of them call this.

    Args:
        value: Anything that can be pickled, with tensors on the CPU.
        group: None stands for all ranks.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
