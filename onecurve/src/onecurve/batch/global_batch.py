"""The global batch that a step gets, and this rank's share of it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from ..compat.of_lightning import loaders_under_way, mode_of
from .share import Share, SharedLoader, combined_share


class GlobalBatch(NamedTuple):
    """A global batch, of one loader or of several."""

    position: tuple[int, ...]
    """Its position in the run, which seeds what this rank draws for it."""
    number: int = 0
    """Its number in the epoch, or in the evaluation of its loader."""
    loaders: Sequence[Any] = ()
    """The loaders that contribute to it."""
    shares: Sequence[Share] = ()
    """This rank's share of each loader's batch; none if ranks do not share one of them."""

    @property
    def samples(self) -> int | None:
        """Its samples on all ranks; None if ranks do not share it."""
        return sum(share.total for share in self.shares) if self.shares else None

    @property
    def share(self) -> Share | None:
        """This rank's share of it; None if ranks do not share it."""
        return combined_share(self.shares) if self.shares else None

    def trained(self) -> None:
        """Tell the loaders that the batch has been trained on."""
        for loader in self.loaders:
            loader.trained(self.number)


class GlobalBatches:
    """Follows which batch is under way. Lightning does not tell a strategy in an evaluation."""

    def __init__(self) -> None:
        # How many batches of each loader an evaluation has moved to the device, and the last one.
        self._moved: Counter[int] = Counter()
        self._evaluated = 0, 0

    def begin_evaluation(self) -> None:
        self._moved.clear()

    def moves(self, trainer: Trainer, dataloader_idx: int) -> None:
        """Count a batch that an evaluation moves to the device."""
        if not trainer.training and loaders_under_way(trainer) is not None:
            self._evaluated = dataloader_idx, self._moved[dataloader_idx]
            self._moved[dataloader_idx] += 1

    def position(self, trainer: Trainer) -> tuple[int, ...]:
        """The position of the batch under way in the run."""
        trained: int = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        return (trained,) if trainer.training else (trained, *self._evaluated)

    def take(self, trainer: Trainer) -> GlobalBatch:
        """The batch under way, as a step begins: the one place where a share is looked up.

        It cannot travel with its batch. What a loader yields, Lightning passes to the precision
        plugin and to the user's `on_before_batch_transfer` before a strategy sees it, and neither
        knows of shares; no number comes with it either.
        """
        position, combined = self.position(trainer), loaders_under_way(trainer)
        if combined is None:
            return GlobalBatch(position)
        loader, number = (0, trainer.fit_loop.batch_idx) if trainer.training else self._evaluated
        loaders = loaders_in_step(combined, loader)
        shares = [each.share(number) for each in shared_in_step(loaders, number)]
        return GlobalBatch(position, number, loaders, shares)


def loaders_in_step(combined: CombinedLoader, dataloader_idx: int = 0) -> list[Any]:
    """The loaders that contribute to a step."""
    loaders: list[Any] = combined.flattened
    if mode_of(combined) == "sequential":  # as in an evaluation
        loaders = loaders[dataloader_idx : dataloader_idx + 1]
    return loaders


def shared_in_step(loaders: Sequence[Any], number: int) -> list[SharedLoader]:
    """Those of a step's loaders that have a batch; none if ranks do not share one of them."""
    if not all(isinstance(loader, SharedLoader) for loader in loaders):
        return []
    return [loader for loader in loaders if loader.share(number).total]
