"""Redistributes the tensors between sharded layers: full ones, or shards along the sequence.

PyTorch's placements describe how a tensor is distributed: `Replicate` (every rank has all of it),
`Shard` (each rank has a shard) and `Partial` (each rank has an addend of the sum). Layers see plain
tensors. `DTensor.redistribute` would send the same, but on 2 CPU ranks it takes 1.5 to 2 times as
long for tensors of 0.5 MB, and its ``to_local`` returns a view that ``nn.ReLU(inplace=True)``
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
    """Change the placement of a tensor; the backward pass redistributes its gradient.

    Args:
        tensor: This rank's local tensor.
        mesh: The ranks, on a one-dimensional mesh.
        before: The current placement.
        after: The new placement.
        gradient: The placement of the result's gradient: `Partial` if each rank computes a
            different part of what follows; None for `after`.
        length: The full length along the sharded dimension, if it is not a multiple of the number
            of ranks. All shards have the same size then, and the last ones are padded with zeros.
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
        ctx.mesh, ctx.before, ctx.gradient = mesh, before, gradient
        # The gradient of every addend is that of the sum.
        ctx.back = Replicate() if before.is_partial() else before
        ctx.length = tensor.shape[after.dim] if after.is_shard() else None
        return _move(tensor, mesh, before, after, length)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # Itself differentiable, for a penalty on gradients.
        way = ctx.mesh, ctx.gradient, ctx.back, ctx.before, ctx.length
        return _Redistribute.apply(gradient, *way), *[None] * 5


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
    """The sum (or "max" or "min") over all ranks; differentiable."""
    return redistribute(tensor, mesh, Partial(of), Replicate())


def with_summed_gradients(mesh: DeviceMesh, *full: Tensor) -> list[Tensor]:
    """Views of tensors whose gradients are summed over the ranks, all in one message."""
    flat = torch.cat([tensor.flatten() for tensor in full])
    used = redistribute(flat, mesh, Replicate(), Replicate(), Partial())
    parts = used.split([tensor.numel() for tensor in full])  # type: ignore[no-untyped-call]
    return [part.view_as(tensor) for part, tensor in zip(parts, full, strict=True)]


class Region:
    """Sharded layers, and the placement of the tensors between them.

    Args:
        mesh: The ranks that share the layers.
        between: `Replicate`, or `Shard` along the sequence. The sequence length is that of the
            latest pass. If activation checkpointing recomputes an earlier pass with another length,
            PyTorch raises an error.
    """

    def __init__(self, mesh: DeviceMesh, between: Placement | None = None) -> None:
        self.mesh = mesh
        self.between = between or Replicate()
        self.length: int | None = None

    def enter(self, tensor: Tensor) -> Tensor:
        """Gather the input of sharded layers; its gradients are summed over the ranks."""
        return redistribute(tensor, self.mesh, self.between, Replicate(), Partial(), self.length)

    def leave(self, made: Tensor, placement: Placement) -> Tensor:
        """Redistribute the output of sharded layers to the placement between layers."""
        return redistribute(made, self.mesh, placement, self.between)

    def split(self, full: Tensor) -> Tensor:
        """Take this rank's shard of the sequence, where the region begins."""
        self.length = full.shape[SEQUENCE]
        return self.leave(full, Replicate())

    def join(self, own: Tensor) -> Tensor:
        """Gather the full sequence, where the region ends."""
        return redistribute(own, self.mesh, self.between, Replicate(), length=self.length)


class Run(NamedTuple):
    """Consecutive blocks that pass shards of a sequence to each other.

    The first block splits the sequence, and the last one joins it: nothing outside changes.
    """

    names: list[str]
    region: Region


def runs_of(parts: Mapping[str, nn.Module], names: Sequence[str], mesh: DeviceMesh) -> list[Run]:
    """Group blocks into runs: neighbours in one nn.Sequential or nn.ModuleList form a run."""
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
