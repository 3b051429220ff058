"""What ranks compare in a fit, and report once where it makes the curve another one.

`FirstStep` looks at batches, random draws and labels in the first steps. `Drift` compares what
should be equal on ranks that see different samples: parameters and buffers. They differ where a
layer sets them from a rank's own rows, as the first batch of k-means does, or where a task computes
gradients by itself; under `ddp` the copies then drift apart, under `fsdp` a parameter is put
together from parts of different ones. `TrainedParameters` compares what a step under `fsdp` trains.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.layer_sync import LayerSync
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..batch.random import Draws, RankStream, are_equal, get_state
from ..batch.share import Share, SharedLoader, TrackedLoader, uneven_shares
from ..compat.of_torch import BatchNorm, local_shard, version_of
from ..errors import UserError, say, some_of
from .batchnorm import report_statistics_of_shares
from .mesh.ranks import Ranks, are_alike, gather_objects
from .prepare import ignores_labels, weighs

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
        """Report after the first two steps of each optimizer: hooks change weights in between."""
        if sum(optimizer is each for each in self._stepped) < 2:
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
            None if shard.grad is None else (shard.grad, version_of(local_shard(shard.grad)))
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
    return gradient is not before[0] or version_of(local_shard(gradient)) != before[1]


class FirstStep:
    """Looks for what makes a curve another one than that of one process.

    Args:
        task: The task.
        name: The strategy's name in ``strategy=...``.
        ranks: The ranks of the run; None in one process.
        stream: This rank's random numbers.
        layer_sync: What `trainer.sync_batchnorm` asks for.
    """

    def __init__(
        self,
        task: LightningModule,
        name: str,
        ranks: Ranks | None,
        stream: RankStream,
        layer_sync: LayerSync | None,
    ) -> None:
        self._task, self._name, self._ranks = task, name, ranks
        self._size = 1 if ranks is None else ranks.sizes.data_parallel
        self._looks_for_uneven = self._size > 1 and not weighs(task)
        self._looks_for_ignored = self._size > 1 and not weighs(task)
        self._layer_sync, self._looks_for_statistics = layer_sync, ranks is not None
        self._looks_for_draws = ranks is not None and Draws.STEP in stream.independent

    def _say(self, line: str) -> None:
        if self._task.trainer.is_global_zero:
            say(f"strategy={self._name}: {line}")

    def compare(self, loaders: Sequence[TrackedLoader], shares: Sequence[Share]) -> None:
        """Reject loaders that yield different samples on the ranks, by their first batches."""
        if self._ranks is None:
            return
        for loader in loaders:
            if not loader.is_compared:
                loader.is_compared = True
                self._compare(loader)
        if self._looks_for_uneven and (line := uneven_shares(shares, self._size)):
            self._looks_for_uneven = False
            self._say(line)

    def _compare(self, loader: TrackedLoader) -> None:
        is_shared = isinstance(loader, SharedLoader)
        kind = type(loader.loader).__name__
        if is_shared:
            kind = f"the loader of {type(loader.dataset).__name__}"
        if len(set(gather_objects(loader.fingerprint, None))) > 1:
            raise UserError(
                f"strategy: {kind} yields different samples on some ranks; let it yield the "
                "same ones on every rank, without a sampler or shards for each, because the "
                "strategy divides the batches, or use strategy=single"
            )
        if not is_shared and self._size > 1:
            self._say(
                f"every rank computes every batch of {kind}, because it is no DataLoader: the "
                "curve is right, but more ranks are no faster; return a DataLoader(dataset, "
                "batch_size=...), of which each rank gets its share"
            )

    @contextmanager
    def training(self, batch: Any) -> Iterator[None]:
        """Print what a first training step ignores and draws, and which statistics differ."""
        if self._looks_for_ignored:
            self._report_ignored(batch)
        before = get_state() if self._looks_for_draws else None
        yield
        # A step may call eval() of a frozen network.
        if self._looks_for_statistics and self._ranks is not None:
            self._looks_for_statistics = False
            if self._task.trainer.is_global_zero:
                sizes = self._ranks.sizes
                report_statistics_of_shares(self._task, self._name, sizes, self._layer_sync)
        if before is None:
            return
        self._looks_for_draws = False
        if self._on_any_rank(not are_equal(before, get_state())):
            self._say(
                f"training_step of {type(self._task).__name__} draws random numbers, different "
                "ones on each rank, so the curve is not that of strategy=single; dropout may, "
                "which trains as well; draw noise in prepare(batch), where it is the same"
            )

    def _report_ignored(self, batch: Any) -> None:
        self._looks_for_ignored = False
        if self._on_any_rank(ignores_labels(batch)):
            self._say(
                "labels of the batch are -100, of which ranks have different numbers, and their "
                f"losses count by samples; if the loss of {type(self._task).__name__} is a mean "
                "over labels, define weight(self, batch): return (labels != -100).sum()"
            )

    def _on_any_rank(self, decision: bool) -> bool:
        return self._ranks is not None and self._ranks.all_agree(decision, all=False)
