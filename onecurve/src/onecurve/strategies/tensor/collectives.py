"""What passes between the ranks of a tensor group, forwards and backwards, and where.

All are functions of plain tensors, which every rank of the group calls alike. A tensor is whole
(the same on every rank), a piece (each rank has another part of it) or a summand (the ranks' sum is
meant). What is whole forwards has the same gradient on every rank. A region says what passes where
sharded layers begin and end: outside of sequence parallelism one all-reduce forwards where they
end, and one backwards where they begin.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F


class Group:
    """The ranks that share layers.

    Args:
        mesh: Of one dimension.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.group = mesh.get_group()
        self.size = mesh.size()
        self.rank = mesh.get_local_rank()

    def sum(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Of all ranks' tensors; no gradient passes."""
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(tensor, op, group=self.group)
        return tensor

    def join(self, piece: Tensor, dim: int) -> Tensor:
        """All ranks' pieces, one after the other along a dimension; no gradient passes."""
        whole = piece.new_empty((self.size * piece.shape[0], *piece.shape[1:]))
        dist.all_gather_into_tensor(whole, piece.contiguous(), group=self.group)
        return torch.cat(whole.chunk(self.size), dim) if dim else whole

    def sum_piece(self, summand: Tensor, dim: int) -> Tensor:
        """This rank's piece of the sum along a dimension that the size divides; no gradient."""
        pieces = summand.chunk(self.size, dim)
        piece = torch.empty_like(pieces[0], memory_format=torch.contiguous_format)
        together = torch.cat(pieces) if dim else summand.contiguous()
        dist.reduce_scatter_tensor(piece, together, group=self.group)
        return piece

    def piece(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's part of a whole, along a dimension that the size divides."""
        return whole.chunk(self.size, dim)[self.rank]


# What a function returns is no view: FSDP2 hangs its hooks on it.


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, whole: Tensor) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, ctx.group.sum(gradient)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, summand: Tensor) -> Tensor:
        return group.sum(summand)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, gradient


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, piece: Tensor, dim: int, into_parts: bool) -> Tensor:
        ctx.group, ctx.dim, ctx.into_parts = group, dim, into_parts
        return group.join(piece, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        own = ctx.group.sum_piece if ctx.into_parts else ctx.group.piece
        return None, own(gradient, ctx.dim), None, None


class _Piece(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, tensor: Tensor, dim: int, summed: bool) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return group.sum_piece(tensor, dim) if summed else group.piece(tensor, dim).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, ctx.group.join(gradient, ctx.dim), None, None


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
        ctx.group, ctx.sent, ctx.got = group, sent, got
        return _exchange(group, rows, sent, got)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, _exchange(ctx.group, gradient, ctx.got, ctx.sent), None, None


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Tensor) -> Any:
        ctx.group = group
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        flat = ctx.group.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        sizes = [gradient.numel() for gradient in gradients]
        parts = zip(flat.split(sizes), gradients, strict=True)
        return None, *(part.view_as(gradient) for part, gradient in parts)


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, tensor: Tensor) -> Tensor:
        return tensor / group.size

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, gradient


def copy(group: Group, whole: Tensor) -> Tensor:
    """A whole that each rank makes another part of: its gradients are summed."""
    return _apply(_Copy, group, whole)


def summed(group: Group, summand: Tensor) -> Tensor:
    """The whole that is the sum of the ranks' summands."""
    return _apply(_Sum, group, summand)


def joined(group: Group, piece: Tensor, dim: int) -> Tensor:
    """The whole of the ranks' pieces."""
    return _apply(_Join, group, piece, dim, False)


def joined_into_parts(group: Group, piece: Tensor, dim: int) -> Tensor:
    """As `joined`, of which each rank makes another part: its gradients are summed."""
    return _apply(_Join, group, piece, dim, True)


def own_piece(group: Group, whole: Tensor, dim: int) -> Tensor:
    """This rank's piece of a whole."""
    return _apply(_Piece, group, whole, dim, False)


def summed_piece(group: Group, summand: Tensor, dim: int) -> Tensor:
    """This rank's piece of the sum of all ranks' summands."""
    return _apply(_Piece, group, summand, dim, True)


def permuted(group: Group, rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
    """Send so many rows to each rank, in order, and get so many of each."""
    return _apply(_Permute, group, rows, sent, got)


def sum_gradients(group: Group, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Wholes that each rank uses for its piece: gradients are summed, in one message."""
    made: tuple[Tensor, ...] = _SumGradients.apply(group, *tensors)
    return made


def share(group: Group, whole: Tensor) -> Tensor:
    """What a rank adds to its summand, so that the sum has the whole once.

    Its gradient is that of the sum, which every rank knows.
    """
    return _apply(_Share, group, whole)


def padded(group: Group, tensor: Tensor, dim: int) -> Tensor:
    """With zeros at the end, so that the size divides the dimension."""
    missing = -tensor.shape[dim] % group.size
    behind = tensor.ndim - 1 - dim % tensor.ndim
    return F.pad(tensor, (0, 0) * behind + (0, missing)) if missing else tensor


def _apply(function: Any, *arguments: Any) -> Tensor:
    made: Tensor = function.apply(*arguments)
    return made


def _exchange(group: Group, rows: Tensor, sent: list[int], got: list[int]) -> Tensor:
    received = rows.new_empty((sum(got), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), got, sent, group=group.group)
    return received


SEQUENCE = 1
"""The dimension of positions in (N, T, features)."""


class Region:
    """Layers between which whole tensors pass.

    Args:
        group: The ranks that share them.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    def enter(self, tensor: Tensor) -> Tensor:
        """What cut layers read."""
        return copy(self.group, tensor)

    def enter_together(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As `enter`, of several in one message.

        A hook may have made three tensors of one, which then cost as much to send as three.
        """
        return sum_gradients(self.group, *tensors)

    def leave(self, summand: Tensor) -> Tensor:
        """What the ranks' summands add up to, as it passes on."""
        return summed(self.group, summand)

    def pass_on(self, whole: Tensor) -> Tensor:
        """A whole that cut layers have made, as it passes on."""
        return whole


class SequenceRegion(Region):
    """Layers between which each rank has a piece of the sequence: (N, T / size, features).

    A length that the size does not divide is filled up with positions that no layer mixes with
    others: cut layers do not read them. It is that of the latest pass; where activations are
    computed again for an earlier one of another length, PyTorch's checkpoint says so.
    """

    length = 0

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's piece, where the region begins."""
        self.length = whole.shape[SEQUENCE]
        return own_piece(self.group, padded(self.group, whole, SEQUENCE), SEQUENCE)

    def join(self, piece: Tensor) -> Tensor:
        """The whole, where the region ends."""
        return self._trimmed(joined(self.group, piece, SEQUENCE))

    def enter(self, tensor: Tensor) -> Tensor:
        """All positions."""
        return self._trimmed(joined_into_parts(self.group, tensor, SEQUENCE))

    def enter_together(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """All positions of each."""
        if len({tensor.shape[:-1] for tensor in tensors}) > 1:
            return tuple(map(self.enter, tensors))
        widths = [tensor.shape[-1] for tensor in tensors]
        together = tensors[0] if len(tensors) == 1 else torch.cat(tensors, -1)
        return tuple(torch.split(self.enter(together), widths, -1))

    def leave(self, summand: Tensor) -> Tensor:
        """This rank's positions of the sum."""
        return summed_piece(self.group, padded(self.group, summand, SEQUENCE), SEQUENCE)

    def pass_on(self, whole: Tensor) -> Tensor:
        """This rank's positions."""
        return own_piece(self.group, padded(self.group, whole, SEQUENCE), SEQUENCE)

    def _trimmed(self, whole: Tensor) -> Tensor:
        if whole.shape[SEQUENCE] == self.length:
            return whole
        return whole.narrow(SEQUENCE, 0, self.length).clone()
