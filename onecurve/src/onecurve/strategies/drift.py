"""Compares what should be equal on ranks that see different samples: parameters and buffers.

They differ where a layer sets them from a rank's own rows, as the first batch of k-means does, or
where a task computes gradients by itself. Under `ddp` the copies then drift apart; under `fsdp` a
parameter is put together from parts of different ones.
"""

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..compat.of_torch import BatchNorm, local_shard, version_of
from ..errors import UserError, say, some_of
from .mesh.ranks import Ranks, are_alike

SUMS = "_sums_when_changed"
"""An attribute of a shard: `sums_of` the full parameter when a layer last changed it."""


class Drift:
    """Compares the tensors of a task in a fit, and reports each that differs once.

    All ranks call its methods together.
    """

    def __init__(self, task: LightningModule, strategy: str, ranks: Ranks) -> None:
        self._task, self._strategy = task, strategy
        self._device, self._group = ranks.device, ranks.samples_group
        self._reported: set[str] = set()
        self._stepped: list[Optimizer] = []

    def after_step(self, optimizer: Optimizer) -> None:
        """Report after the first step of each optimizer."""
        if not any(optimizer is each for each in self._stepped):
            self._stepped.append(optimizer)
            self.report()

    def report(self) -> None:
        """Print which tensors differ and were not reported before."""
        names = self._compare()
        if names and self._task.trainer.is_global_zero:
            say(
                f"strategy={self._strategy}: {some_of(names)} of {type(self._task).__name__} "
                "became different ones on each rank, so the copies of the network drift apart: "
                "set weights and buffers from self.trainer.strategy.all_samples(rows) instead of a "
                "rank's rows, average gradients that a step computes by itself, p.grad = "
                "self.trainer.strategy.reduce(p.grad), or use strategy=single"
            )

    @torch.no_grad()
    def _compare(self) -> list[str]:
        """Leave out BatchNorm's statistics, which have a line of their own."""
        statistics = statistics_of(self._task)
        tensors = dict([*self._task.named_parameters(), *self._task.named_buffers()])
        named = {name: each for name, each in tensors.items() if name not in statistics}
        if not named:
            return []
        sums = torch.stack([_sums_here(each).to(self._device) for each in named.values()])
        extremes = torch.stack([sums, -sums]).nan_to_num(0.0, 0.0, 0.0)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, self._group)
        drifted = (extremes[0] + extremes[1]).amax(1) > 1e-12 * extremes.abs().amax((0, 2))
        differ = [name for name, is_one in zip(named, drifted.tolist(), strict=True) if is_one]
        differ = [name for name in differ if name not in self._reported]
        self._reported.update(differ)
        return differ


def drift_of(task: LightningModule, strategy: str, ranks: Ranks | None) -> Drift | None:
    """What compares the ranks' tensors in a fit; None if all see the same samples."""
    sees_all = ranks is None or ranks.sizes.data_parallel == 1
    return None if ranks is None or sees_all else Drift(task, strategy, ranks)


def statistics_of(task: nn.Module) -> set[str]:
    """Names of the buffers of BatchNorm."""
    layers = [each for each in task.named_modules() if isinstance(each[1], BatchNorm)]
    return {name for at, layer in layers for name, _ in layer.named_buffers(at)}


def sums_of(tensor: Tensor) -> Tensor:
    """The sum of the values, and of their absolute values."""
    values = tensor.detach()
    values = torch.view_as_real(values) if values.is_complex() else values
    values = values if values.is_floating_point() else values.double()
    return torch.stack([values.sum(dtype=torch.float64), values.abs().sum(dtype=torch.float64)])


def _sums_here(tensor: Tensor) -> Tensor:
    nothing = torch.zeros(2, dtype=torch.float64)
    # A shard is this rank's alone: what can differ is what a layer wrote into the full parameter.
    if isinstance(tensor, DTensor):
        return getattr(tensor, SUMS, nothing)
    return nothing if tensor.is_meta or tensor.layout != torch.strided else sums_of(tensor)


class TrainedParameters:
    """Rejects a backward pass after which ranks have gradients of different shards.

    FSDP2 packs the gradients that a rank has, and sums those of all ranks up, number by number. If
    an expert got no sample on one rank, these are of different parameters: of other sizes, which
    ends in an error, or of equal ones, which nobody would notice. Ranks that have trained all of
    their parameters communicate nothing.
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
        if missed and not are_alike(missed, self._ranks.samples_group, self._ranks.device):
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
    return version_of(local_shard(gradient))
