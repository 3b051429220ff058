"""Context parallelism as an axis of a mesh: every rank computes a shard of each sequence.

The network's inputs are sharded along dimension 1, and its outputs gathered. The rest of a task
(loss, metrics, logs) gets full sequences, the same on every rank of the axis. In a pipeline, the
stages shard the sequences instead (`Pieces`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard

from ...compat.of_torch import tree_flatten, tree_map, tree_unflatten
from ...compat.patching import replaced
from ...errors import UserError, say
from ..collectives import redistribute, with_hook
from ..mesh.sizes import Sizes
from ..parallelism import Parallelism
from .attention import until_backward_ends, working_on
from .axis import Axis, Piece

Tensors = tuple[Tensor, ...]


class ContextParallel(Parallelism):
    """Replaces `forward`: it takes full sequences, and the network gets this rank's shard."""

    _is_used: bool = False

    def is_needed(self, sizes: Sizes) -> bool:
        return sizes.context > 1 and sizes.pipeline == 1

    def connected(self, task: LightningModule) -> AbstractContextManager[Any]:
        shard_forward, group = task.forward, self.ranks.context_group
        assert group is not None

        def forward(*inputs: Any, **options: Any) -> Any:
            self._is_used = True
            return run_on_shards(shard_forward, inputs, group, **options)

        return replaced(task, "forward", forward)

    def run(self, name: str, batch: Any, step: Callable[[], Any]) -> Any:
        """Run a step, and report once if it does not call `self(inputs)`."""
        output = step()
        if not self._is_used and self.ranks.rank == 0:
            say(
                f"strategy.context={self.ranks.sizes.context}: {name} does not call "
                "self(inputs), so no sequence is sharded and every rank computes all of it"
            )
        self._is_used = True
        return output


def run_on_shards(
    forward: Callable[..., Any], inputs: Any, group: dist.ProcessGroup, **options: Any
) -> Any:
    """Run a network on this rank's shards of full sequences, and gather its outputs.

    Its arguments are tensors or trees of them; the group has the ranks in the order of the shards.
    """
    leaves, structure = tree_flatten((tuple(inputs), options))
    sequences = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    pieces = Pieces(group)
    shards = iter(pieces.cut(sequences))
    leaves = [next(shards) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = tree_unflatten(leaves, structure)
    with pieces.working(sequences):
        outputs = forward(*args, **kwargs)
    return pieces.whole(outputs, sequences)


class Pieces:
    """The steps of `run_on_shards` one by one, for a pipeline (see its `WholeSequences`)."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.axis = Axis(group)

    def cut(self, inputs: Tensors) -> Tensors:
        return shard_sequences(inputs, self.axis)

    def working(self, inputs: Tensors) -> AbstractContextManager[None]:
        return working_on(self.axis.piece(inputs[0].shape[1]))

    def outside(self) -> AbstractContextManager[None]:
        return working_on(None)

    def whole(self, outputs: Any, inputs: Tensors) -> Any:
        return gather_outputs(outputs, self.axis.piece(inputs[0].shape[1]))


def shard_sequences(inputs: Tensors, axis: Axis) -> Tensors:
    """This rank's contiguous shard of each sequence; differentiable.

    The first input of the network, (N, T, ...), defines the length T; others with T in dimension 1
    are sharded as well, and the rest is passed in full.
    """
    asked = f"strategy.context={axis.size}"
    if inputs[0].ndim < 2:
        raise UserError(
            f"{asked}: the input of the network has the shape {tuple(inputs[0].shape)}, so there "
            "is no dimension 1, the sequence, to shard; use strategy.context=1"
        )
    length = inputs[0].shape[1]
    if length % axis.size:
        fits = max(size for size in range(1, axis.size) if length % size == 0)
        longer = length + axis.size - length % axis.size
        raise UserError(
            f"{asked}: does not divide the sequence length {length}; use strategy.context={fits}, "
            f"or sequences of {longer}"
        )
    shards = []
    for value in inputs:
        is_sequence = value.ndim > 2 or (value.ndim == 2 and not value.is_floating_point())
        if is_sequence and value.shape[1] == length // axis.size:
            raise UserError(
                f"{asked}: one input has sequences of {length}, sharded to {value.shape[1]} per "
                "rank, and another has full sequences of that length; use another length, or "
                "strategy.context=1"
            )
        is_sharded = value.ndim > 1 and value.shape[1] == length
        shards.append(_Shard.apply(value, axis) if is_sharded else value)
    return tuple(shards)


class _Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return value.chunk(axis.size, 1)[axis.rank].clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        # Each rank's gradient is multiplied by the number of ranks: see `gather_outputs`.
        return ctx.axis.gather(incoming, 1) / ctx.axis.size, None


def gather_outputs(outputs: Any, piece: Piece) -> Any:
    """Concatenate the outputs of all ranks, (N, T / ranks, ...), along dimension 1.

    Differentiable: a rank gets the gradient of its own shard times the number of ranks, because
    gradients of parameters are averaged over the axis later, and should be summed.
    """
    size = piece.axis.size
    length = piece.length * size

    def gathered(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.ndim < 2 or value.shape[1] != piece.length:
            raise UserError(
                f"strategy.context={size}: the network returns the shape "
                f"{tuple(value.shape)} for {piece.length} of {length} positions, so it "
                "combines positions (a mean, the last one); return the outputs of all positions, "
                "(N, T, ...), and do that in the task's loss, or use strategy.context=1"
            )
        value = with_hook(value, enter_backward)
        return redistribute(value, piece.axis.group, Shard(1), Replicate())

    def enter_backward(gradient: Tensor) -> Tensor:
        until_backward_ends(piece)
        return gradient * size

    return tree_map(gathered, outputs)
