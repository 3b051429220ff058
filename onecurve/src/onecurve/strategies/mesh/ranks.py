"""This rank's place on the mesh of five axes, its process groups, and simple collectives."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, cast
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ...batch.random import Draws, RankStream
from ...errors import UserError
from .sizes import Sizes, filled


class Ranks:
    """This rank among the others, once the process group exists.

    Args:
        asked: The number of ranks along each axis; one of them may be "auto" for the ranks that
            the others leave.
        timeout: How long a rank waits for the others in a collective before it fails.

    Attributes:
        sizes: The number of ranks along each axis.
        coordinates: This rank's position along each axis.
        samples_group: The ranks that hold the same parameters and see different samples.
        context_group: The ranks with shards of the same sequences; None if sequences are full.
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
        if dist.get_backend() == "gloo":  # gloo cannot split a group that is bound to a GPU
            world.bound_device_id = None
        self.samples_group = self.group_of("replicate", "shard")
        if self.sizes.context > 1:
            self.context_group = self.group_of("context")
        self.stage_group = self.group_of("replicate", "shard", "context", "tensor")

    def group_of(self, *axes: str, backend: str | None = None) -> dist.ProcessGroup:
        """Create the group of ranks that differ from this one along these axes only."""
        groups = self.sizes.groups(*axes)
        if len(groups) == 1 and backend is None:
            return cast(dist.ProcessGroup, dist.group.WORLD)
        created = [dist.new_group(ranks, self._timeout, backend) for ranks in groups]
        mine = next(i for i, ranks in enumerate(groups) if self.rank in ranks)
        return cast(dist.ProcessGroup, created[mine])

    @cached_property
    def pipeline_group(self) -> dist.ProcessGroup:
        """The ranks of one pipeline. All ranks must access this at the same time."""
        return self.group_of("pipeline")

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The mesh on which parameters are sharded: replicate, pipeline, shard, tensor.

        It has the axis shard, and those of the others that have several ranks. Shard includes the
        axis context: ranks that see different positions can hold shards of the same parameters.
        """
        sizes = self.sizes
        shape = sizes._replace(shard=sizes.shard * sizes.context, context=1)._asdict()
        axes = {axis: size for axis, size in shape.items() if size > 1 or axis == "shard"}
        return init_device_mesh(self.device.type, tuple(axes.values()), mesh_dim_names=tuple(axes))

    @property
    def data_parallel_rank(self) -> int:
        """This rank's number among the ranks that see different samples."""
        return self.coordinates.replicate * self.sizes.shard + self.coordinates.shard

    @property
    def draw_independently(self) -> bool:
        """Whether ranks draw different numbers in their steps.

        Stages, and ranks with different positions of a sequence, draw for their own part.
        """
        return self.sizes.data_parallel * self.sizes.pipeline * self.sizes.context > 1

    @property
    def is_first_of_stage(self) -> bool:
        """Whether this rank is the first of those that hold the same layers."""
        return self.coordinates._replace(pipeline=0) == Sizes(0, 0, 0, 0, 0)

    @torch.no_grad()
    def copy_first(self, *tensors: Tensor, group: Any = None) -> None:
        """Broadcast tensors from the first rank of a group, by default the stage group.

        One tensor at a time, because the full network may not fit on one device.
        """
        for tensor in tensors:
            on_device = tensor.to(self.device).contiguous()
            dist.broadcast(on_device, group=group or self.stage_group, group_src=0)
            tensor.copy_(on_device)

    def all_agree(self, decision: bool, all: bool = True) -> bool:
        """Whether the decision is true on all ranks of the world, or on any of them."""
        votes = torch.tensor(int(decision), device=self.device)
        dist.all_reduce(votes)
        return bool(votes == dist.get_world_size()) if all else bool(votes)


def stream_of(ranks: Ranks | None) -> RankStream:
    """This rank's streams of random numbers."""
    if ranks is None or not ranks.draw_independently:
        return RankStream(0, independent=())
    independent = tuple(Draws) if ranks.sizes.data_parallel > 1 else (Draws.STEP,)
    return RankStream(ranks.data_parallel_rank, independent)


def are_alike(
    names: Sequence[str], group: dist.ProcessGroup | None, device: torch.device | None = None
) -> bool:
    """Whether all ranks of a group pass the same names, in the same order; one small message."""
    number = crc32("\n".join(names).encode())
    extremes = torch.tensor([number, -number], device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    return not extremes.sum()


def gather_objects(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Gather a picklable value from each rank of a group (None: all), in rank order."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def laid_out(
    strategy: str, axes: Mapping[str, int | Literal["auto"]], rank: int, world_size: int, *here: Any
) -> Ranks:
    """The ranks of a strategy along its axes; `here` is what else `Ranks` takes.

    Raises:
        UserError: If their product is not the number of ranks.
    """
    try:
        return Ranks(axes, rank, world_size, *here)
    except ValueError as error:
        raise UserError(
            f"strategy={strategy}: {error}, and there are {world_size}; let the product of all "
            "axes be the number of ranks"
        ) from None
