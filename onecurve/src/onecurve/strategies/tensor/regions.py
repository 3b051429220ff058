"""Redistributes the tensors between sharded layers: full ones, or shards along the sequence."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from ..collectives import redistribute

SEQUENCE = 1
"""The dimension of positions in (N, T, features)."""


def full_sum(tensor: Tensor, mesh: DeviceMesh, of: str = "sum") -> Tensor:
    """The sum (or "max" or "min") over all ranks; differentiable."""
    return redistribute(tensor, mesh.get_group(), Partial(of), Replicate())


def with_summed_gradients(mesh: DeviceMesh, *full: Tensor) -> list[Tensor]:
    """Views of tensors whose gradients are summed over the ranks, all in one message."""
    flat = torch.cat([tensor.flatten() for tensor in full])
    used = redistribute(flat, mesh.get_group(), Replicate(), Replicate(), Partial())
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
        return redistribute(
            tensor, self.mesh.get_group(), self.between, Replicate(), Partial(), self.length
        )

    def leave(self, made: Tensor, placement: Placement) -> Tensor:
        """Redistribute the output of sharded layers to the placement between layers."""
        return redistribute(made, self.mesh.get_group(), placement, self.between)

    def split(self, full: Tensor) -> Tensor:
        """Take this rank's shard of the sequence, where the region begins."""
        self.length = full.shape[SEQUENCE]
        return self.leave(full, Replicate())

    def join(self, own: Tensor) -> Tensor:
        """Gather the full sequence, where the region ends."""
        return redistribute(
            own, self.mesh.get_group(), self.between, Replicate(), length=self.length
        )


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
