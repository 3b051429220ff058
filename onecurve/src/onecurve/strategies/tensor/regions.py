"""What passes between sharded layers: full tensors, or each rank's positions of a sequence.

How a tensor lies on the ranks is said by PyTorch's placements: `Replicate` (every rank has all of
it), `Shard` (each has a part) and `Partial` (the sum over the ranks is meant). Layers see plain
tensors. `DTensor.redistribute` would send the same: on 2 CPU ranks it takes 1.5 to 2 times as long
for tensors of 0.5 MB, and what its ``to_local`` returns is a view that ``nn.ReLU(inplace=True)``
cannot write to.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.nn import functional as F

SEQUENCE = 1
"""The dimension of positions in (N, T, features)."""
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def redistribute(
    tensor: Tensor,
    mesh: DeviceMesh,
    before: Placement,
    after: Placement,
    gradient: Placement | None = None,
    length: int | None = None,
) -> Tensor:
    """What this rank has of a tensor in another placement; the gradient goes the way back.

    Args:
        tensor: What this rank has of it before.
        mesh: The ranks, of one dimension.
        before: How the tensor lies on them.
        after: How it is to lie on them.
        gradient: How the gradient of the result lies on them: `Partial` where each rank makes
            another part of what follows; None for as the result does.
        length: Of the full tensor along the dimension of its shards, where the ranks do not divide
            it: shards are of one size, and zeros fill the last ones.
    """
    made: Tensor = _Redistribute.apply(tensor, mesh, before, after, gradient or after, length)
    return made


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        mesh: DeviceMesh,
        before: Any,
        after: Any,
        gradient: Placement,
        length: int | None,
    ) -> Tensor:
        ctx.mesh, ctx.gradient = mesh, gradient
        # Every rank knows the gradient of a sum.
        ctx.back = Replicate() if before.is_partial() else before
        ctx.length = tensor.shape[after.dim] if after.is_shard() else None
        return _move(tensor, mesh, before, after, length)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        back = _move(gradient, ctx.mesh, ctx.gradient, ctx.back, ctx.length)
        return back, *[None] * 5


def _move(tensor: Tensor, mesh: DeviceMesh, before: Any, after: Any, length: int | None) -> Tensor:
    if before.is_replicate() and after.is_replicate():
        return tensor.view_as(tensor)
    group, size = mesh.get_group(), mesh.size()
    if before.is_shard() and after.is_shard():
        tensor, before = _move(tensor, mesh, before, Replicate(), length), Replicate()
    if after.is_shard():
        missing = -tensor.shape[after.dim] % size
        if missing:
            behind = tensor.ndim - 1 - after.dim % tensor.ndim
            tensor = F.pad(tensor, (0, 0) * behind + (0, missing))
        shards = tensor.chunk(size, after.dim)
        if before.is_replicate():
            return shards[mesh.get_local_rank()].clone(memory_format=torch.contiguous_format)
        made = torch.empty_like(shards[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter_tensor(made, torch.cat(shards), group=group)
        return made
    if before.is_shard():
        made = tensor.new_empty((size * tensor.shape[0], *tensor.shape[1:]))
        dist.all_gather_into_tensor(made, tensor.contiguous(), group=group)
        made = torch.cat(made.chunk(size), before.dim)
        if length is None or length == made.shape[before.dim]:
            return made
        return made.narrow(before.dim, 0, length).clone()
    made = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(made, OPERATIONS[before.reduce_op], group)
    return made


def full_sum(tensor: Tensor, mesh: DeviceMesh, of: str = "sum") -> Tensor:
    """The sum, or the "max" or "min", over all ranks."""
    return redistribute(tensor, mesh, Partial(of), Replicate())


def with_summed_gradients(mesh: DeviceMesh, *full: Tensor) -> list[Tensor]:
    """Tensors that each rank uses for its part; gradients are summed, all in one message."""
    flat = torch.cat([tensor.flatten() for tensor in full])
    used = redistribute(flat, mesh, Replicate(), Replicate(), Partial())
    parts = used.split([tensor.numel() for tensor in full])  # type: ignore[no-untyped-call]
    return [part.view_as(tensor) for part, tensor in zip(parts, full, strict=True)]


class Region:
    """Sharded layers, and how what passes between them lies on the ranks.

    Args:
        mesh: The ranks that share the layers.
        between: `Replicate`, or `Shard` of the dimension of positions. The length of sequences is
            that of the latest pass; where activations are computed again for an earlier one of
            another length, PyTorch's checkpoint says so.
    """

    def __init__(self, mesh: DeviceMesh, between: Placement | None = None) -> None:
        self.mesh = mesh
        self.between = between or Replicate()
        self.length: int | None = None

    def enter(self, tensor: Tensor) -> Tensor:
        """All of it, for layers of which each makes another part of what follows."""
        return redistribute(tensor, self.mesh, self.between, Replicate(), Partial(), self.length)

    def leave(self, made: Tensor, placement: Placement) -> Tensor:
        """What sharded layers have made, as it passes on."""
        return redistribute(made, self.mesh, placement, self.between)

    def split(self, full: Tensor) -> Tensor:
        """This rank's positions, where the region begins."""
        self.length = full.shape[SEQUENCE]
        return self.leave(full, Replicate())

    def join(self, own: Tensor) -> Tensor:
        """All positions, where the region ends."""
        return redistribute(own, self.mesh, self.between, Replicate(), length=self.length)


class Run(NamedTuple):
    """Blocks one after the other that pass shards of a sequence to each other.

    The first splits the sequence, and the last one joins it: nothing changes outside of them.
    """

    names: list[str]
    region: Region


def runs_of(parts: Mapping[str, nn.Module], names: Sequence[str], mesh: DeviceMesh) -> list[Run]:
    """Neighbours in one nn.Sequential or nn.ModuleList form a run; any other block is one."""
    runs: list[Run] = []
    for holder in dict.fromkeys(name.rpartition(".")[0] for name in names):
        ordered = isinstance(parts[holder], nn.Sequential | nn.ModuleList)
        before = ""
        for child, _ in parts[holder].named_children():
            name = f"{holder}.{child}".lstrip(".")
            if name in names:
                if ordered and runs and runs[-1].names[-1] == before:
                    runs[-1].names.append(name)
                else:
                    runs.append(Run([name], Region(mesh, Shard(SEQUENCE))))
            before = name
    return runs
