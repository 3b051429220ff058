"""Compares which parameters the ranks have trained in a backward pass.

FSDP2 packs the gradients that a rank has and sums those of all ranks up, number by number. If a
layer got no sample on one rank, as an expert or a head of its own for some samples, what ranks have
packed are gradients of different parameters: of other sizes, which ends in an error, or of equal
ones, which nobody would notice.
"""

from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...compat.of_torch import version_of
from ...errors import UserError, some_of
from ..mesh.ranks import Ranks


class TrainedParameters:
    """Rejects a backward pass after which ranks have gradients of different parameters.

    Ranks that have trained all of their parameters communicate nothing.
    """

    def __init__(self, task: nn.Module, strategy: str, ranks: Ranks) -> None:
        self._strategy, self._ranks = strategy, ranks
        self._shards = [each for each in task.named_parameters() if isinstance(each[1], DTensor)]
        # The gradients before a backward pass, and how often each has been changed in place.
        self._before: list[tuple[Tensor, int] | None] = []

    def begin(self) -> None:
        """Note the gradients before a backward pass."""
        self._before = [
            None if shard.grad is None else (shard.grad, _changes(shard.grad))
            for _, shard in self._shards
        ]

    def end(self) -> None:
        """Compare the parameters whose gradients are still the same."""
        shards = zip(self._shards, self._before, strict=True)
        missed = [name for (name, p), old in shards if p.requires_grad and not _is_new(p.grad, old)]
        self._before = []
        if not missed:
            return
        seen = crc32(" ".join(missed).encode())
        extremes = torch.tensor([seen, -seen], device=self._ranks.device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, self._ranks.samples_group)
        if extremes.sum():
            raise UserError(
                f"strategy={self._strategy}: ranks have trained different parameters in a step, "
                f"this one not {some_of(missed)}, and FSDP2 would add gradients of one to those of "
                "another: call each layer on every rank, such as an expert without samples on "
                "inputs[:0], or use strategy=ddp, whose find_unused_parameters allows it"
            )


def _is_new(gradient: Tensor | None, before: tuple[Tensor, int] | None) -> bool:
    if gradient is None or before is None:
        return gradient is not None
    return gradient is not before[0] or _changes(gradient) != before[1]


def _changes(gradient: Tensor) -> int:
    return version_of(gradient.to_local() if isinstance(gradient, DTensor) else gradient)
