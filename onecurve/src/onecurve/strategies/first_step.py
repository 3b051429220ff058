"""What ranks compare, and print once, in the first steps of a fit or an evaluation."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.layer_sync import LayerSync

from ..batch.random import Draws, RankStream, are_equal, get_state
from ..batch.share import Share, SharedLoader, TrackedLoader, uneven_shares
from ..errors import UserError, say
from .batchnorm import report_statistics_of_shares
from .mesh.ranks import Ranks, gather_objects
from .weight import ignores_labels, weighs


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
        if self._looks_for_statistics and self._ranks is not None:
            self._looks_for_statistics = False
            if self._task.trainer.is_global_zero:
                sizes = self._ranks.sizes
                report_statistics_of_shares(self._task, self._name, sizes, self._layer_sync)
        if self._looks_for_ignored:
            self._report_ignored(batch)
        before = get_state() if self._looks_for_draws else None
        yield
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
